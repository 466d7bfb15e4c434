{{/* The pods that run for a moment: the check before an install or upgrade, and the test. The Service must not select them. */}}

{{/* Takes root and for, which is check or test. */}}
{{- define "weir.hookLabels" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (.root.Values.nameOverride | default .root.Chart.Name | trunc 57 | trimSuffix "-") .for }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* How `weir check` reads settings and policies as this release would. Nothing with mode=ratelimit and policies from elsewhere. */}}
{{- define "weir.checkArguments" -}}
{{- $given := include "weir.given" . | fromJson -}}
{{- if eq .Values.mode "serve" -}}
- check
- --config
- /etc/weir/config/{{ empty .Values.existingConfig.name | ternary "weir.yaml" .Values.existingConfig.key }}
{{- else if get $given "policies.directory" -}}
- check
- --compatible
{{- if has (get $given "MERGE_DOMAIN_CONFIG" | lower) (list "1" "t" "true") }}
- --merge-domains
{{- end }}
- {{ get $given "policies.directory" | quote }}
{{- end -}}
{{- end -}}

{{/* The variables of weir's container, and its arguments as variables, which `weir check` does not take. */}}
{{- define "weir.checkEnv" -}}
{{- $arguments := include "weir.arguments" . | fromJson -}}
{{- range concat (include "weir.env" . | fromYamlArray) .Values.env -}}
{{- if not (hasKey $arguments (trimPrefix "WEIR__" .name | lower | replace "__" ".")) }}
- {{ toJson . }}
{{- end -}}
{{- end -}}
{{- range $name, $value := $arguments }}
- {{ dict "name" (include "weir.variable" $name) "value" $value | toJson }}
{{- end -}}
{{- end -}}

{{/* What both have of a pod's spec. Takes root. */}}
{{- define "weir.hookPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What `helm test` asks, as JSON: a domain of the policies, and its first descriptor that has a limit for any value. Where the values do not have the policies, a domain without policies. */}}
{{- define "weir.asked" -}}
{{- $test := .Values.hooks.test -}}
{{- $asked := dict -}}
{{- range .Values.policies.enabled | ternary .Values.policies.files dict -}}
{{- $file := kindIs "string" . | ternary (toString . | fromYaml) . -}}
{{- if and $file.domain (not $asked.domain) (has $test.domain (list "" (toString $file.domain))) -}}
{{- $_ := set $asked "domain" (toString $file.domain) -}}
{{- range kindIs "slice" $file.descriptors | ternary $file.descriptors list -}}
{{- if and (not $asked.descriptor) (regexMatch "^[^,=\\\\]+$" (toString .key)) (not (or (hasKey . "value") (hasKey . "values") (hasKey . "cidr") (hasKey . "regex"))) (or .rate_limit .rate_limits) -}}
{{- /* A limit of 0 denies the request. */ -}}
{{- if not (regexMatch "\"(requests_per_unit|rate|rate_limit)\":\"?0[^0-9_]" (toJson .)) -}}
{{- $_ := set $asked "descriptor" (printf "%v=helm-test" .key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "domain" (coalesce $test.domain $asked.domain "helm-test") "descriptor" (coalesce $test.descriptor $asked.descriptor "helm=test") | toJson -}}
{{- end -}}

{{/* The pods that run for a moment: the check before an upgrade, and the test. The Service must not select them. */}}

{{/* Takes root and for, which is check or test. */}}
{{- define "weir.hookLabels" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (.root.Values.nameOverride | default .root.Chart.Name | trunc 57 | trimSuffix "-") .for }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* The directory of policies that weir reads, if it reads one. */}}
{{- define "weir.policiesDirectory" -}}
{{- $given := include "weir.given" . | fromJson -}}
{{- if ne (get $given "policies.source") "xds" -}}
{{- get $given "policies.directory" -}}
{{- end -}}
{{- end -}}

{{/* How `weir check` reads the policies as this release would. */}}
{{- define "weir.checkArguments" -}}
{{- $given := include "weir.given" . | fromJson -}}
{{- $yes := list "on" "true" "yes" "1" "t" -}}
- check
{{- if or (eq .Values.mode "ratelimit") (has (get $given "policies.compatible" | toString | lower) $yes) }}
- --compatible
{{- end }}
{{- if or (has (get $given "MERGE_DOMAIN_CONFIG" | toString | lower) $yes) (has (get $given "policies.merge_domains" | toString | lower) $yes) }}
- --merge-domains
{{- end }}
- {{ include "weir.policiesDirectory" . | quote }}
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

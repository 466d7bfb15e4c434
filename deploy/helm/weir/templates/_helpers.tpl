{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels and annotations of an object. Takes root, name, and where given namespace, labels, annotations. */}}
{{- define "weir.metadata" -}}
{{- $root := .root -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- merge (deepCopy (.labels | default dict)) (include "weir.labels" $root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (deepCopy (.annotations | default dict)) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "weir.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "weir.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.address" -}}
{{- if contains ":" .host -}}[{{ .host }}]{{- else -}}{{ .host }}{{- end -}}:{{ int64 .port }}
{{- end -}}

{{/* What says how to reach one Redis, as settings. Takes the values of that Redis, prefix and directory. */}}
{{- define "weir.redisSettings" -}}
{{- $p := .prefix -}}
{{- $r := .redis -}}
{{ $p }}.url: {{ required "redis.url: where the limits live, such as redis://redis:6379" $r.url | quote }}
{{ $p }}.topology: {{ $r.topology | quote }}
{{- with $r.auth.username }}
{{ $p }}.username: {{ . | quote }}
{{- end }}
{{- if $r.auth.existingSecret }}
{{ $p }}.password_file: {{ printf "/etc/weir/%s/password" .directory | quote }}
{{- end }}
{{- with $r.sentinel.master }}
{{ $p }}.sentinel.master: {{ . | quote }}
{{- end }}
{{- with $r.sentinel.auth.username }}
{{ $p }}.sentinel.username: {{ . | quote }}
{{- end }}
{{- if $r.sentinel.auth.existingSecret }}
{{ $p }}.sentinel.password_file: {{ printf "/etc/weir/%s-sentinel/password" .directory | quote }}
{{- end }}
{{- end -}}

{{/* The settings that values of the chart set, by their names on docs/configuration.md. */}}
{{- define "weir.settings" -}}
{{- $v := .Values -}}
listen.grpc: {{ include "weir.address" (dict "host" $v.listenAddress "port" $v.ports.grpc) | quote }}
listen.http: {{ include "weir.address" (dict "host" $v.listenAddress "port" $v.ports.http) | quote }}
{{- if $v.metrics.port }}
listen.metrics: {{ include "weir.address" (dict "host" $v.listenAddress "port" $v.metrics.port) | quote }}
metrics.path: {{ $v.metrics.path | quote }}
{{- end }}
{{- if $v.tls.enabled }}
listen.tls.cert_file: {{ printf "/etc/weir/tls/%s" $v.tls.certKey | quote }}
listen.tls.key_file: {{ printf "/etc/weir/tls/%s" $v.tls.keyKey | quote }}
{{- with $v.tls.clientCaKey }}
listen.tls.client_ca_file: {{ printf "/etc/weir/tls/%s" . | quote }}
{{- end }}
{{- with $v.tls.clientNames }}
listen.tls.client_names: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- if $v.policies.enabled }}
policies.directory: /etc/weir/policies
{{- end }}
{{- with $v.store }}
store: {{ . }}
{{- end }}
{{- if eq $v.store "redis" }}
on_error: {{ $v.onError }}
{{ include "weir.redisSettings" (dict "prefix" "redis" "redis" $v.redis "directory" "redis-auth") }}
{{- if $v.redis.perSecond.url }}
{{ include "weir.redisSettings" (dict "prefix" "redis.per_second" "redis" $v.redis.perSecond "directory" "redis-per-second-auth") }}
{{- end }}
{{- with $v.redis.tls }}
{{- if .existingSecret }}
{{- with .caKey }}
redis.tls.ca_file: {{ printf "/etc/weir/redis-tls/%s" . | quote }}
{{- end }}
{{- with .certKey }}
redis.tls.cert_file: {{ printf "/etc/weir/redis-tls/%s" . | quote }}
{{- end }}
{{- with .keyKey }}
redis.tls.key_file: {{ printf "/etc/weir/redis-tls/%s" . | quote }}
{{- end }}
{{- end }}
{{- with .serverName }}
redis.tls.server_name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if not (kindIs "invalid" $v.memory.maxKeys) }}
memory.max_keys: {{ int64 $v.memory.maxKeys | quote }}
{{- end }}
{{- if not (kindIs "invalid" $v.denyCache.maxAge) }}
deny_cache.max_age: {{ $v.denyCache.maxAge | quote }}
{{- end }}
{{- if not (kindIs "invalid" $v.denyCache.maxKeys) }}
deny_cache.max_keys: {{ int64 $v.denyCache.maxKeys | quote }}
{{- end }}
{{- with $v.charging }}
charging: {{ . }}
{{- end }}
log.level: {{ $v.log.level | quote }}
log.format: {{ $v.log.format | quote }}
runtime.cores: {{ int64 $v.cores | quote }}
shutdown.pause: {{ printf "%ds" (int64 $v.shutdown.pauseSeconds) | quote }}
shutdown.grace: {{ printf "%ds" (int64 $v.shutdown.graceSeconds) | quote }}
{{- end -}}

{{/* The same as environment variables: redis.tls.ca_file is WEIR__REDIS__TLS__CA_FILE. */}}
{{- define "weir.env" -}}
{{- range $name, $value := include "weir.settings" . | fromYaml }}
- name: {{ include "weir.variable" $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "weir.envNames" -}}
{{- range include "weir.env" . | fromYamlArray }}
{{ .name }}: true
{{- end }}
{{- end -}}

{{/* weir's settings in YAML 1.1 become true and false on their way through Helm; in weir's file they are on and off. */}}
{{- define "weir.configFile" -}}
{{- regexReplaceAll "(?m): false$" (regexReplaceAll "(?m): true$" (toYaml .Values.config) ": on") ": off" -}}
{{- end -}}

{{- define "weir.policyFiles" -}}
{{- range $file, $content := .Values.policies.files }}
{{ $file }}: |
  {{- kindIs "string" $content | ternary $content (toYaml $content) | trimSuffix "\n" | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.hasConfig" -}}
{{- if or .Values.config .Values.existingConfig.name }}true{{ end -}}
{{- end -}}

{{/* A probe with its handler: an HTTP GET, unless the values give another. Takes probe and path. */}}
{{- define "weir.probe" -}}
{{- $probe := deepCopy .probe -}}
{{- if not (or $probe.exec $probe.grpc $probe.tcpSocket) -}}
{{- $_ := set $probe "httpGet" (merge (deepCopy ($probe.httpGet | default dict)) (dict "path" .path "port" "http")) -}}
{{- end -}}
{{- range $key, $value := $probe -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $probe $key -}}
{{- end -}}
{{- end -}}
{{- toYaml $probe -}}
{{- end -}}

{{/* The volumes of Secrets and ConfigMaps, each with its place: a list of name, path and source. */}}
{{- define "weir.mounts" -}}
{{- $v := .Values -}}
{{- $name := include "weir.fullname" . -}}
{{- if $v.policies.enabled }}
- name: policies
  path: /etc/weir/policies
  source: {configMap: {name: {{ $v.policies.existingConfigMap | default (printf "%s-policies" $name) }}}}
{{- end }}
{{- if eq (include "weir.hasConfig" .) "true" }}
- name: config
  path: /etc/weir/config
  source: {configMap: {name: {{ $v.existingConfig.name | default (printf "%s-config" $name) }}}}
{{- end }}
{{- if $v.tls.enabled }}
- name: tls
  path: /etc/weir/tls
  source: {secret: {secretName: {{ $v.tls.existingSecret }}, defaultMode: 288}}
{{- end }}
{{- if eq $v.store "redis" }}
{{- range $directory, $redis := dict "redis-auth" $v.redis "redis-per-second-auth" (ternary $v.redis.perSecond dict (ne $v.redis.perSecond.url "")) }}
{{- range $suffix, $auth := dict "" ($redis.auth | default dict) "-sentinel" (($redis.sentinel | default dict).auth | default dict) }}
{{- if $auth.existingSecret }}
- name: {{ $directory }}{{ $suffix }}
  path: /etc/weir/{{ $directory }}{{ $suffix }}
  source: {secret: {secretName: {{ $auth.existingSecret }}, defaultMode: 288, items: [{key: {{ $auth.passwordKey | quote }}, path: password}]}}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.redis.tls.existingSecret }}
- name: redis-tls
  path: /etc/weir/redis-tls
  source: {secret: {secretName: {{ . }}, defaultMode: 288}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Refuses a PodDisruptionBudget that lets no pod leave. Kubernetes rounds a percentage up. */}}
{{- define "weir.refuseBudget" -}}
{{- $v := .Values -}}
{{- $replicas := $v.autoscaling.enabled | ternary $v.autoscaling.minReplicas $v.replicaCount | int -}}
{{- with $v.podDisruptionBudget -}}
{{- if and .enabled (gt $replicas 0) -}}
{{- $isMin := not (kindIs "invalid" .minAvailable) -}}
{{- $given := $isMin | ternary .minAvailable .maxUnavailable -}}
{{- $pods := kindIs "string" $given | ternary (div (add (mul (trimSuffix "%" (toString $given) | atoi) $replicas) 99) 100) (int64 $given) | int -}}
{{- if ge ($isMin | ternary $pods (sub $replicas $pods | int)) $replicas -}}
{{- fail (printf "podDisruptionBudget.%s: %v of %d replicas lets no pod leave, and the drain of a node would never end: set more replicas, or podDisruptionBudget.maxUnavailable=1 alone" ($isMin | ternary "minAvailable" "maxUnavailable") $given $replicas) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses more keys than weir would keep: a quarter of the memory limit, at 128 bytes each. */}}
{{- define "weir.refuseMaxKeys" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- $limit = kindIs "float64" $limit | ternary (int64 $limit | toString) (toString $limit) -}}
{{- $keys := get (include "weir.given" . | fromJson) "memory.max_keys" -}}
{{- $keys = kindIs "float64" $keys | ternary (int64 $keys | toString) (toString $keys) -}}
{{- if and (regexMatch "^[0-9]+$" $keys) (regexMatch "^[0-9]+([.][0-9]+)?([KMGT]i|[kMGT])?$" $limit) -}}
{{- $keys = atoi $keys -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $bytes := mulf (regexFind "^[0-9.]+" $limit | float64) (get $units (regexFind "[a-zA-Z]+$" $limit)) -}}
{{- $most := div (int64 $bytes) 512 -}}
{{- if gt (int64 $keys) $most -}}
{{- fail (printf "memory.maxKeys: %d keys need a memory limit of %d MiB, and resources.limits.memory is %s, in which weir keeps %d: raise the limit, or leave maxKeys out" $keys (div (add (mul $keys 512) 1048575) 1048576) $limit $most) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What values cannot have together. */}}
{{- define "weir.validate" -}}
{{- $v := .Values -}}
{{- if $v.policies.enabled -}}
{{- if and $v.policies.files $v.policies.existingConfigMap -}}
{{- fail "policies.files and policies.existingConfigMap: set one of the two" -}}
{{- else if not (or $v.policies.files $v.policies.existingConfigMap) -}}
{{- fail "policies.files: what is limited, one entry for each file; or policies.existingConfigMap; or policies.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- if and $v.config $v.existingConfig.name -}}
{{- fail "config and existingConfig.name: set one of the two" -}}
{{- end -}}
{{- if and (eq $v.mode "ratelimit") (eq (include "weir.hasConfig" .) "true") -}}
{{- fail "config and existingConfig have no effect with mode=ratelimit: set variables in env" -}}
{{- end -}}
{{- $config := include "weir.flat" (dict "node" $v.config "prefix" "" "names" (include "weir.names" . | fromJson)) | fromJson -}}
{{- include "weir.refuseWrong" (dict "root" . "given" $config "where" "config" "variables" false) -}}
{{- include "weir.refuseWrong" (dict "root" . "given" (include "weir.arguments" . | fromJson) "where" "extraArgs" "variables" false) -}}
{{- $own := include "weir.settings" . | fromYaml -}}
{{- include "weir.refuseWrong" (dict "root" . "given" $own "where" "values" "variables" false) -}}
{{- range $name, $_ := $own -}}
{{- if hasKey $config $name -}}
{{- fail (printf "config: %s is set by another value of this chart, which would win; set that one" $name) -}}
{{- end -}}
{{- end -}}
{{- range $v.env -}}
{{- if hasKey (include "weir.envNames" $ | fromYaml) .name -}}
{{- fail (printf "env: %s is set by another value of this chart; set that one" .name) -}}
{{- end -}}
{{- if hasPrefix "WEIR__" .name -}}
{{- $value := hasKey . "valueFrom" | ternary nil (.value | default "") -}}
{{- include "weir.refuseWrong" (dict "root" $ "given" (dict (trimPrefix "WEIR__" .name | lower | replace "__" ".") $value) "where" "env" "variables" true) -}}
{{- end -}}
{{- end -}}
{{- $given := include "weir.given" . | fromJson -}}
{{- if and (ne (get $given "store") "memory") (ne (include "weir.hasUnseenSettings" .) "true") -}}
{{- range $redis := list "redis" "redis.per_second" -}}
{{- $value := eq $v.store "redis" | ternary (replace "per_second" "perSecond" $redis) $redis -}}
{{- $sentinel := eq (get $given (printf "%s.topology" $redis)) "sentinel" -}}
{{- $master := get $given (printf "%s.sentinel.master" $redis) -}}
{{- if and $sentinel (not $master) -}}
{{- fail (printf "%s.sentinel.master: required with %s.topology=sentinel" $value $value) -}}
{{- else if and $master (not $sentinel) -}}
{{- fail (printf "%s.sentinel.master needs %s.topology=sentinel" $value $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.mode "serve") (ne (include "weir.hasUnseenSettings" .) "true") -}}
{{- if eq (get $given "policies.source" | toString) "xds" -}}
{{- if not (get $given "policies.xds.server") -}}
{{- fail "policies.xds.server: required with policies.source=xds" -}}
{{- end -}}
{{- else if not (get $given "policies.directory") -}}
{{- fail "policies.enabled=false needs policies.directory, or policies.source=xds, among the settings" -}}
{{- end -}}
{{- end -}}
{{- with $v.redis.tls -}}
{{- if ne (empty .certKey) (empty .keyKey) -}}
{{- fail "redis.tls.certKey and redis.tls.keyKey: set both or none" -}}
{{- end -}}
{{- if and .certKey (not .existingSecret) -}}
{{- fail "redis.tls.certKey needs redis.tls.existingSecret" -}}
{{- end -}}
{{- if and (eq $v.store "redis") (or .existingSecret .serverName) (not (hasPrefix "rediss:" (get $given "redis.url"))) (not (hasPrefix "rediss:" (get $given "redis.per_second.url"))) -}}
{{- fail "redis.tls has no effect without a redis.url that begins with rediss://" -}}
{{- end -}}
{{- end -}}
{{- range $name := list "startupProbe" "livenessProbe" "readinessProbe" -}}
{{- $handlers := list -}}
{{- range $handler := list "exec" "grpc" "httpGet" "tcpSocket" -}}
{{- if get (index $v $name | default dict) $handler -}}
{{- $handlers = append $handlers $handler -}}
{{- end -}}
{{- end -}}
{{- if gt (len $handlers) 1 -}}
{{- fail (printf "%s: set one of %s" $name (join " and " $handlers)) -}}
{{- end -}}
{{- end -}}
{{- with $v.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: %d is above autoscaling.maxReplicas, which is %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- if not $v.tls.existingSecret -}}
{{- fail "tls.existingSecret: required with tls.enabled" -}}
{{- end -}}
{{- else if or $v.tls.clientCaKey $v.tls.clientNames -}}
{{- fail (printf "%s needs tls.enabled: without it callers use plain text and show no certificate" (empty $v.tls.clientCaKey | ternary "tls.clientNames" "tls.clientCaKey")) -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- if and $v.tls.clientNames (not $v.tls.clientCaKey) -}}
{{- fail "tls.clientNames needs tls.clientCaKey" -}}
{{- end -}}
{{- end -}}
{{- if and (ne $v.metrics.path "/metrics") (not $v.metrics.port) -}}
{{- fail "metrics.path can be another than /metrics only with metrics.port" -}}
{{- end -}}
{{- if and $v.service.headless (ne $v.service.type "ClusterIP") -}}
{{- fail (printf "service.type=%s needs service.headless=false" $v.service.type) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (not $v.metrics.port) (not $v.service.httpPort) -}}
{{- fail "serviceMonitor.enabled needs service.httpPort or metrics.port" -}}
{{- end -}}
{{- with $v.podDisruptionBudget -}}
{{- if and .enabled (kindIs "invalid" .maxUnavailable) (kindIs "invalid" .minAvailable) -}}
{{- fail "podDisruptionBudget: set maxUnavailable or minAvailable" -}}
{{- end -}}
{{- end -}}
{{- include "weir.refuseBudget" . -}}
{{- include "weir.refuseMaxKeys" . -}}
{{- with $v.redis -}}
{{- range $name, $auth := dict "redis.auth" .auth "redis.sentinel.auth" .sentinel.auth "redis.perSecond.auth" .perSecond.auth "redis.perSecond.sentinel.auth" .perSecond.sentinel.auth -}}
{{- if and $auth.username (not $auth.existingSecret) -}}
{{- fail (printf "%s.username needs %s.existingSecret" $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

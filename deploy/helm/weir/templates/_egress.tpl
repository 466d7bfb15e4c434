{{/* Where weir connects to, for the NetworkPolicy. */}}

{{/* The ports of an address or of several between commas; `?` for one that it does not show. Takes address, and default: the port of a host without one. */}}
{{- define "weir.portsOf" -}}
{{- $ports := list -}}
{{- if not (regexMatch "^(redis\\+)?unix:|^/" .address) -}}
{{- range splitList "," (regexReplaceAll "^([a-z+]+://)?[^/?]*@" .address "") -}}
{{- $host := regexReplaceAll "[/?].*$" (regexReplaceAll "^([a-z+]+:///?)?([^/?]*@)?" . "") "" -}}
{{- if regexMatch "^(\\[[^\\]]+\\]|[^:\\[\\]]*):[0-9]+$" $host -}}
{{- $ports = append $ports (regexReplaceAll "^.*:" $host "") -}}
{{- else if regexMatch "^(\\[[^\\]]+\\]|[^:\\[\\]?$]+)$" $host -}}
{{- $ports = append $ports $.default -}}
{{- else -}}
{{- $ports = append $ports "?" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* For each kind of peer (redis, xds, otlp, webhook, statsd) the ports by the settings, without those of `networkPolicy`. Fails where one cannot be known and `networkPolicy` gives none. */}}
{{- define "weir.egressPorts" -}}
{{- $given := include "weir.given" . | fromJson -}}
{{- $unseen := eq (include "weir.hasUnseenSettings" .) "true" -}}
{{- $ratelimit := eq .Values.mode "ratelimit" -}}
{{- $ports := dict "redis" list "xds" list "otlp" list "webhook" list "statsd" list -}}
{{- $unknown := dict -}}
{{- $sources := list -}}
{{- if ne (get $given "store") "memory" -}}
{{- $sources = append $sources (dict "peer" "redis" "names" (list "redis.url" "REDIS_URL") "topologies" (list "redis.topology" "REDIS_TYPE")) -}}
{{- $perSecond := list "redis.per_second.url" -}}
{{- if ne (get $given "REDIS_PERSECOND" | lower | default "false") "false" -}}
{{- $perSecond = append $perSecond "REDIS_PERSECOND_URL" -}}
{{- end -}}
{{- $sources = append $sources (dict "peer" "redis" "names" $perSecond "topologies" (list "redis.per_second.topology" "REDIS_PERSECOND_TYPE")) -}}
{{- if and $unseen (not .Values.store) (not (hasKey $given "redis.url")) (not (and $ratelimit (hasKey $given "REDIS_URL"))) -}}
{{- $_ := set $unknown "redis" "envFrom or existingConfig gives the address of Redis" -}}
{{- end -}}
{{- end -}}
{{- $sources = append $sources (dict "peer" "xds" "names" (list "policies.xds.server" "CONFIG_GRPC_XDS_SERVER_URL") "default" "443") -}}
{{- $sources = append $sources (dict "peer" "otlp" "names" (list "tracing.otlp.endpoint" "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) -}}
{{- $sources = append $sources (dict "peer" "otlp" "names" (list "metrics.otlp.endpoint" "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")) -}}
{{- $sources = append $sources (dict "peer" "otlp" "names" (list "OTEL_EXPORTER_OTLP_ENDPOINT")) -}}
{{- $sources = append $sources (dict "peer" "webhook" "names" (list "alerts.webhook_url")) -}}
{{- $sources = append $sources (dict "peer" "statsd" "names" (list "statsd.address")) -}}
{{- if and $ratelimit (hasKey $given "STATSD_HOST") -}}
{{- $_ := set $given "statsd.address" (printf "statsd:%s" (get $given "STATSD_PORT" | default "8125")) -}}
{{- end -}}
{{- range $source := $sources -}}
{{- $found := "" -}}
{{- range $name := reverse $source.names -}}
{{- if and (get $given $name) (or (contains "." $name) (hasPrefix "OTEL_" $name) $ratelimit) -}}
{{- $found = $name -}}
{{- end -}}
{{- end -}}
{{- if $found -}}
{{- $address := get $given $found | toString -}}
{{- $default := $source.default | default (hasPrefix "http:" $address | ternary "80" "443") -}}
{{- if eq $source.peer "redis" -}}
{{- $topology := coalesce (get $given (index $source.topologies (contains "." $found | ternary 0 1))) "single" | lower -}}
{{- $default = eq $topology "sentinel" | ternary "26379" "6379" -}}
{{- if eq $topology "sentinel" -}}
{{- $_ := set $unknown "redis" "the sentinels give the port of the Redis servers" -}}
{{- if not (contains "." $found) -}}
{{- /* REDIS_URL begins with the name of the master. */ -}}
{{- $address = regexReplaceAll "^[^,]*,?" $address "" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $port := include "weir.portsOf" (dict "address" $address "default" $default) | fromJsonArray -}}
{{- if eq $port "?" -}}
{{- $_ := set $unknown $source.peer (printf "the value of %s does not show it" $found) -}}
{{- else -}}
{{- $_ := set $ports $source.peer (append (get $ports $source.peer) $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $unseen -}}
{{- if and (or (eq (get $given "policies.source") "xds") (eq (get $given "CONFIG_TYPE" | upper) "GRPC_XDS_SOTW")) (not (or (get $given "policies.xds.server") (get $given "CONFIG_GRPC_XDS_SERVER_URL"))) -}}
{{- $_ := set $unknown "xds" "envFrom or existingConfig gives the address of the control plane" -}}
{{- end -}}
{{- if and (has "otlp" (list (get $given "tracing.exporter") (get $given "metrics.exporter") (get $given "OTEL_TRACES_EXPORTER") (get $given "OTEL_METRICS_EXPORTER"))) (not $ports.otlp) -}}
{{- $_ := set $unknown "otlp" "envFrom or existingConfig gives the address of the collector" -}}
{{- end -}}
{{- if and (get $given "alerts.webhook_secret_file") (not (get $given "alerts.webhook_url")) -}}
{{- $_ := set $unknown "webhook" "envFrom or existingConfig gives the address of the webhook" -}}
{{- end -}}
{{- end -}}
{{- range $peer, $reason := $unknown -}}
{{- if not (get $.Values.networkPolicy (printf "%sPorts" $peer)) -}}
{{- fail (printf "networkPolicy.%sPorts: required, because the chart cannot know the port: %s" $peer $reason) -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

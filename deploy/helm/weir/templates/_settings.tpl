{{/* Which settings the values give, and whether weir has them. */}}

{{/* The schema of each setting of weir, by its name. */}}
{{- define "weir.names" -}}
{{- .Files.Get "files/settings.json" -}}
{{- end -}}

{{- define "weir.variable" -}}
WEIR__{{ . | upper | replace "." "__" }}
{{- end -}}

{{/* A YAML tree of settings as a map from their names to their values, without empty groups. Takes node, prefix and names. */}}
{{- define "weir.flat" -}}
{{- $flat := dict -}}
{{- range $key, $value := .node -}}
{{- $name := printf "%s%s" $.prefix $key -}}
{{- $isGroup := false -}}
{{- range $known, $_ := $.names -}}
{{- $isGroup = or $isGroup (hasPrefix (printf "%s." $name) $known) -}}
{{- end -}}
{{- if and $isGroup (or (kindIs "map" $value) (kindIs "invalid" $value)) -}}
{{- range $below, $leaf := include "weir.flat" (dict "node" ($value | default dict) "prefix" (printf "%s." $name) "names" $.names) | fromJson -}}
{{- $_ := set $flat $below $leaf -}}
{{- end -}}
{{- else -}}
{{- $_ := set $flat $name $value -}}
{{- end -}}
{{- end -}}
{{- toJson $flat -}}
{{- end -}}

{{/* The flags of `weir serve`, each with its setting. */}}
{{- define "weir.flags" -}}
--set:
--config:
--policies: policies.directory
--grpc: listen.grpc
--http: listen.http
--admin: listen.admin
--store: store
--charging: charging
--redis-url: redis.url
{{- end -}}

{{/* What extraArgs set: names and values. Fails for arguments that `weir serve` does not have. With mode=ratelimit weir ignores arguments. */}}
{{- define "weir.arguments" -}}
{{- $set := dict -}}
{{- if eq .Values.mode "serve" -}}
{{- $flags := include "weir.flags" . | fromYaml -}}
{{- $flag := "" -}}
{{- range $argument := .Values.extraArgs -}}
{{- $hasValue := ne $flag "" -}}
{{- $value := $argument -}}
{{- if not $hasValue -}}
{{- $flag = regexReplaceAll "(?s)=.*$" $argument "" -}}
{{- if not (hasKey $flags $flag) -}}
{{- fail (printf "extraArgs: %s: weir serve has no such flag, only %s" $flag (keys $flags | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $hasValue = contains "=" $argument -}}
{{- $value = trimPrefix (printf "%s=" $flag) $argument -}}
{{- end -}}
{{- if $hasValue -}}
{{- $name := get $flags $flag -}}
{{- if eq $flag "--set" -}}
{{- if not (contains "=" $value) -}}
{{- fail "extraArgs: --set: write NAME=VALUE" -}}
{{- end -}}
{{- $name = regexReplaceAll "(?s)=.*$" $value "" -}}
{{- $value = regexReplaceAll "^[^=]*=" $value "" -}}
{{- end -}}
{{- if $name -}}
{{- $_ := set $set $name $value -}}
{{- end -}}
{{- $flag = "" -}}
{{- end -}}
{{- end -}}
{{- if $flag -}}
{{- fail (printf "extraArgs: %s needs a value" $flag) -}}
{{- end -}}
{{- end -}}
{{- toJson $set -}}
{{- end -}}

{{/* Each setting that values give, and each other variable of env: name and value. `?` is a value that Kubernetes fills in later. */}}
{{- define "weir.given" -}}
{{- $given := include "weir.flat" (dict "node" .Values.config "prefix" "" "names" (include "weir.names" . | fromJson)) | fromJson -}}
{{- range .Values.env -}}
{{- $name := .name -}}
{{- if hasPrefix "WEIR__" $name -}}
{{- $name = trimPrefix "WEIR__" $name | lower | replace "__" "." -}}
{{- end -}}
{{- $_ := set $given $name (hasKey . "valueFrom" | ternary "?" (.value | default "")) -}}
{{- end -}}
{{- range $name, $value := include "weir.settings" . | fromYaml -}}
{{- $_ := set $given $name $value -}}
{{- end -}}
{{- range $name, $value := include "weir.arguments" . | fromJson -}}
{{- $_ := set $given $name $value -}}
{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{/* Whether settings come from where the chart cannot look. */}}
{{- define "weir.hasUnseenSettings" -}}
{{- if or .Values.envFrom .Values.existingConfig.name (regexMatch "(^|\n)--config(=|\n)" (join "\n" .Values.extraArgs)) }}true{{ end -}}
{{- end -}}

{{/* The name that shares most pairs of letters with a mistaken one. Takes name and names. */}}
{{- define "weir.nearest" -}}
{{- $nearest := "" -}}
{{- $most := -1000 -}}
{{- range $candidate, $_ := .names -}}
{{- $shared := 0 -}}
{{- range $pair := list (list $.name $candidate) (list $candidate $.name) -}}
{{- $from := index $pair 0 -}}
{{- range $i := until (sub (len $from) 1 | int) -}}
{{- $shared = contains (substr $i (add $i 2 | int) $from) (index $pair 1) | ternary (add $shared 1) (sub $shared 1) -}}
{{- end -}}
{{- end -}}
{{- if gt (int $shared) (int $most) -}}
{{- $nearest = $candidate -}}
{{- $most = $shared -}}
{{- end -}}
{{- end -}}
{{- $nearest -}}
{{- end -}}

{{/* Refuses names that are no settings of weir, and texts that their settings do not take. Takes root, given (a map from names to values; one that is not a text is not checked), where, and variables: whether the names are written as variables. */}}
{{- define "weir.refuseWrong" -}}
{{- $names := include "weir.names" .root | fromJson -}}
{{- range $name, $value := .given -}}
{{- $shown := $.variables | ternary (include "weir.variable" $name) $name -}}
{{- if not (hasKey $names $name) -}}
{{- $nearest := include "weir.nearest" (dict "name" $name "names" $names) -}}
{{- fail (printf "%s: %s: no such setting, the nearest is %s" $.where $shown ($.variables | ternary (include "weir.variable" $nearest) $nearest)) -}}
{{- end -}}
{{- $schema := get $names $name -}}
{{- /* Kubernetes puts other variables in the place of $(NAME). */ -}}
{{- if and (kindIs "string" $value) (not (contains "$(" $value)) -}}
{{- if ne (include "weir.isValue" (dict "schema" $schema "value" $value)) "true" -}}
{{- fail (printf "%s: %s: wrong value %q: %s" $.where $shown $value $schema.description) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a setting takes a text, by its schema. Takes schema and value. */}}
{{- define "weir.isValue" -}}
{{- $value := .value -}}
{{- with .schema -}}
{{- if .enum -}}
{{- has $value .enum -}}
{{- else if .anyOf -}}
{{- has $value (list "on" "On" "ON" "off" "Off" "OFF" "true" "True" "TRUE" "false" "False" "FALSE" "yes" "Yes" "YES" "no" "No" "NO" "y" "Y" "n" "N") -}}
{{- else if eq (toString .type) "integer" -}}
{{- and (regexMatch "^[0-9]{1,18}$" $value) (ge (atoi $value) (int .minimum)) (le (atoi $value) (int .maximum)) -}}
{{- else if .maximum -}}
{{- and (regexMatch "^[0-9]+(\\.[0-9]+)?$" $value) (le (float64 $value) (float64 .maximum)) -}}
{{- else if .pattern -}}
{{- regexMatch .pattern $value -}}
{{- else -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

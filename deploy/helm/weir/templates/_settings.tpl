{{/* Which settings the values give, and whether weir has them. */}}

{{/* The names of all settings of weir, as keys, by the schema that weir writes. */}}
{{- define "weir.names" -}}
{{- $names := dict -}}
{{- range .Files.Lines "files/settings.txt" | compact -}}
{{- $_ := set $names . true -}}
{{- end -}}
{{- toJson $names -}}
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

{{/* What extraArgs set: names and values. With mode=ratelimit weir ignores arguments. */}}
{{- define "weir.arguments" -}}
{{- $set := dict -}}
{{- if eq .Values.mode "serve" -}}
{{- $flags := dict "--redis-url" "redis.url" "--store" "store" "--policies" "policies.directory" -}}
{{- $flag := "" -}}
{{- range .Values.extraArgs -}}
{{- $value := . -}}
{{- range $known := list "--set" "--redis-url" "--store" "--policies" -}}
{{- if hasPrefix (printf "%s=" $known) $value -}}
{{- $flag = $known -}}
{{- $value = trimPrefix (printf "%s=" $known) $value -}}
{{- end -}}
{{- end -}}
{{- if eq $flag "--set" -}}
{{- $_ := set $set (regexReplaceAll "=.*$" $value "") (regexReplaceAll "^[^=]*=" $value "") -}}
{{- $flag = "" -}}
{{- else if hasKey $flags $flag -}}
{{- $_ := set $set (get $flags $flag) $value -}}
{{- $flag = "" -}}
{{- else -}}
{{- $flag = $value -}}
{{- end -}}
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
{{- if or .Values.envFrom .Values.existingConfig.name }}true{{ end -}}
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

{{/* Refuses names that are no settings of weir. Takes root, given (a map whose keys are names), where, and variables: whether they are written as variables. */}}
{{- define "weir.refuseUnknown" -}}
{{- $names := include "weir.names" .root | fromJson -}}
{{- range $name, $_ := .given -}}
{{- if not (hasKey $names $name) -}}
{{- $nearest := include "weir.nearest" (dict "name" $name "names" $names) -}}
{{- if $.variables -}}
{{- fail (printf "%s: %s: no such setting, the nearest is %s" $.where (include "weir.variable" $name) (include "weir.variable" $nearest)) -}}
{{- else -}}
{{- fail (printf "%s: %s: no such setting, the nearest is %s" $.where $name $nearest) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* SPDX-License-Identifier: Apache-2.0
The objects come from the same files that kustomize reads; these definitions lay the values over them. */}}

{{- /* Render a file's documents, tuned. Wants (list $ path). */ -}}
{{- define "gpu-usher.file" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (printf "files/%s" (index . 1)) -}}
{{- if not $text }}{{ fail (printf "files/%s is not in the chart: is it a checkout without symbolic links?" (index . 1)) }}{{ end -}}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . -}}
{{- if $object.Error }}{{ fail $object.Error }}{{ end }}
{{- if $object.kind }}
{{- if eq $object.kind "Deployment" }}{{ include "gpu-usher.deployment" (list $root $object) }}{{ end }}
{{- if and (eq $object.kind "NetworkPolicy") $object.spec.ingress }}{{ include "gpu-usher.networkPolicy" (list $root $object) }}{{ end }}
{{- if hasSuffix "WebhookConfiguration" $object.kind }}{{ include "gpu-usher.webhooks" (list $root $object) }}{{ end }}
{{- if eq $object.kind "APIService" }}{{ include "gpu-usher.apiService" (list $root $object) }}{{ end }}
{{- if and (eq $object.kind "Service") $root.Values.explainApi.enabled }}
{{- $_ := set $object.spec "ports" (append $object.spec.ports (dict "name" "explain" "port" 8445 "targetPort" "explain" "protocol" "TCP")) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}

{{- define "gpu-usher.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag }}{{ end }}
{{- end }}

{{- /* Change a Deployment in place; renders nothing. Wants (list $ object). */ -}}
{{- define "gpu-usher.deployment" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $values := $root.Values -}}
{{- $pod := $object.spec.template.spec -}}
{{- if eq $object.metadata.name "gpu-usher" }}{{ $_ := set $object.spec "replicas" $values.replicas }}{{ end -}}
{{- if and (eq $object.metadata.name "gpu-usher") $values.explainApi.enabled -}}
{{- range $pod.containers -}}
{{- $_ := set . "env" (prepend .env (dict "name" "GPU_USHER_EXPLAIN_ADDRESS" "value" "[::]:8445")) -}}
{{- $_ := set . "ports" (prepend .ports (dict "name" "explain" "containerPort" 8445 "protocol" "TCP")) -}}
{{- end -}}
{{- end -}}
{{- if and (has $object.metadata.name (list "gpu-usher" "gpu-usher-scheduler")) ($values.imageFacts).enabled -}}
{{- $sources := list (dict "configMap" (dict "name" "gpu-usher-registries")) (dict "secret" (dict "name" "gpu-usher-registries" "optional" true)) -}}
{{- $_ := set $pod "volumes" (prepend $pod.volumes (dict "name" "registries" "projected" (dict "sources" $sources))) -}}
{{- range concat (default list $pod.initContainers) $pod.containers -}}{{- if ne .name "kube-scheduler" -}}
{{- $_ := set . "env" (prepend .env (dict "name" "GPU_USHER_IMAGE_REGISTRIES" "value" "/etc/gpu-usher/registries/registries.yaml")) -}}
{{- $_ := set . "volumeMounts" (prepend .volumeMounts (dict "name" "registries" "mountPath" "/etc/gpu-usher/registries" "readOnly" true)) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- if eq $object.metadata.name "gpu-usher-scheduler" }}{{ $_ := set $object.spec "replicas" $values.secondScheduler.replicas }}{{ end -}}
{{- $_ := set $pod "priorityClassName" $values.priorityClassName -}}
{{- with $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end -}}
{{- with $values.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- range concat (default list $pod.initContainers) $pod.containers -}}
{{- if eq .name "kube-scheduler" -}}
{{- $_ := set . "image" $values.secondScheduler.image -}}
{{- else -}}
{{- $_ := set . "image" (include "gpu-usher.image" $root) -}}
{{- $_ := set . "imagePullPolicy" $values.image.pullPolicy -}}
{{- if .env }}{{ include "gpu-usher.serve" (list $root .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Change a container that serves. Wants (list $ container). */ -}}
{{- define "gpu-usher.serve" -}}
{{- $values := (index . 0).Values -}}
{{- $container := index . 1 -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- range $container.env }}{{ if and (eq .name "GPU_USHER_ROLE") (eq .value "admission") }}{{ $_ := set . "value" $values.role }}{{ end }}{{ end -}}
{{- range $name, $value := $values.env -}}
{{- $_ := set $container "env" (append $container.env (dict "name" $name "value" $value)) -}}
{{- end -}}
{{- end }}

{{- /* Change a webhook configuration in place. Wants (list $ object). */ -}}
{{- define "gpu-usher.webhooks" -}}
{{- $values := (index . 0).Values -}}
{{- $object := index . 1 -}}
{{- if eq $values.certificates.mode "cert-manager" -}}
{{- $_ := set $object.metadata "annotations" (dict "cert-manager.io/inject-ca-from" "gpu-usher/gpu-usher") -}}
{{- end -}}
{{- range $object.webhooks -}}
{{- if has .name (list "mutate.gpu-usher.io" "mutate-claims.gpu-usher.io") }}{{ $_ := set . "failurePolicy" $values.webhooks.mutate.failurePolicy }}{{ $_ := set . "timeoutSeconds" $values.webhooks.mutate.timeoutSeconds }}{{ end -}}
{{- if has .name (list "validate.gpu-usher.io" "validate-claims.gpu-usher.io") }}{{ $_ := set . "failurePolicy" $values.webhooks.validate.failurePolicy }}{{ $_ := set . "timeoutSeconds" $values.webhooks.validate.timeoutSeconds }}{{ end -}}
{{- if eq $values.certificates.mode "secret" }}{{ $_ := set .clientConfig "caBundle" (required "certificates.caBundle: wants the CA in base64 with mode secret" $values.certificates.caBundle) }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* Give the APIService its CA. Wants (list $ object). */ -}}
{{- define "gpu-usher.apiService" -}}
{{- $certificates := (index . 0).Values.certificates -}}
{{- $object := index . 1 -}}
{{- if eq $certificates.mode "cert-manager" -}}
{{- $_ := set $object.metadata "annotations" (dict "cert-manager.io/inject-ca-from" "gpu-usher/gpu-usher") -}}
{{- else if eq $certificates.mode "secret" -}}
{{- $_ := set $object.spec "caBundle" (required "certificates.caBundle: wants the CA in base64 with mode secret" $certificates.caBundle) -}}
{{- end -}}
{{- end }}

{{- /* Change a NetworkPolicy in place: who may scrape, and who may call the webhook. Wants (list $ object). */ -}}
{{- define "gpu-usher.networkPolicy" -}}
{{- $values := (index . 0).Values.networkPolicy -}}
{{- $object := index . 1 -}}
{{- $rule := index $object.spec.ingress 0 -}}
{{- if eq $object.metadata.name "gpu-usher" -}}
{{- $name := dict "kubernetes.io/metadata.name" $values.monitoringNamespace -}}
{{- $_ := set $rule "from" (list (dict "namespaceSelector" (dict "matchLabels" $name))) -}}
{{- else if $values.controlPlane -}}
{{- $peers := list -}}
{{- range $values.controlPlane }}{{ $peers = append $peers (dict "ipBlock" (dict "cidr" .)) }}{{ end -}}
{{- $_ := set $rule "from" $peers -}}
{{- end -}}
{{- end }}

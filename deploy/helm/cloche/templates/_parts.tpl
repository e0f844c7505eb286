{{- define "cloche.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "cloche.labels" -}}
app.kubernetes.io/name: cloche
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "cloche.selector" -}}
app.kubernetes.io/name: cloche
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "cloche.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Addresses of the gateways' cluster ports, for edges and hosts. */}}
{{- define "cloche.gateways" -}}
{{- if .Values.cluster.gateways -}}
{{ join "," .Values.cluster.gateways }}
{{- else -}}
{{ include "cloche.name" . }}-gateway-cluster.{{ .Release.Namespace }}.svc:{{ .Values.cluster.port }}
{{- end -}}
{{- end }}

{{/* Names of the service of MCP, which its clients may use, and the operator's. */}}
{{- define "cloche.mcpHosts" -}}
{{- $service := printf "%s-gateway-mcp" (include "cloche.name" .) -}}
{{- $inside := printf "%s.%s" $service .Release.Namespace -}}
{{- concat (list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) .Values.gateway.mcpHosts | join "," -}}
{{- end }}

{{/* The instance tag that the host makes of its home (packages/host/src/sys/instance.ts): names its folder below /run. */}}
{{- define "cloche.instanceTag" -}}
{{- $digest := sha256sum .Values.host.home -}}
{{- range $i := until 6 -}}
{{- $byte := substr (int (mul $i 2)) (int (add (mul $i 2) 2)) $digest | printf "0x%s" | int64 -}}
{{- $at := int (mod $byte 36) -}}
{{- substr $at (int (add $at 1)) "abcdefghijklmnopqrstuvwxyz0123456789" -}}
{{- end -}}
{{- end }}

{{- define "cloche.storageEnv" -}}
- { name: CLOCHE_BLOB_URL, value: {{ .Values.storage.url | quote }} }
{{- with .Values.storage.secret }}
{{- if .name }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: { secretKeyRef: { name: {{ .name }}, key: {{ .accessKeyId }} } }
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: { secretKeyRef: { name: {{ .name }}, key: {{ .secretAccessKey }} } }
{{- end }}
{{- end }}
{{- end }}

{{/* No pod needs the API of Kubernetes. `enableServiceLinks` would set CLOCHE_GATEWAY_PORT to a URL. */}}
{{- define "cloche.pod" -}}
serviceAccountName: {{ include "cloche.name" .root }}-{{ .part }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cloche.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: { matchLabels: { {{- include "cloche.selectorLine" $ -}} } }
  {{- end }}
{{- end }}

{{- define "cloche.selectorLine" -}}
app.kubernetes.io/name: cloche, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* Security context of parts that need no access to the node. */}}
{{- define "cloche.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  capabilities: { drop: [ALL] }
  seccompProfile: { type: RuntimeDefault }
{{- end }}

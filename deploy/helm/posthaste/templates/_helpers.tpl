{{- define "posthaste.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "posthaste.selector" -}}
app.kubernetes.io/name: posthaste
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "posthaste.labels" -}}
{{ include "posthaste.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "posthaste.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The Deployments that are enabled, separated by blanks. */ -}}
{{- define "posthaste.components" -}}
{{- range $c := list "dispatch" "control" "relay" "api" }}{{ if (index $.Values $c).enabled }}{{ $c }} {{ end }}{{ end }}
{{- end }}

{{- /* An environment variable from the Secret of the database: (dict "name" … "secret" … "key" …). */ -}}
{{- define "posthaste.secretEnv" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
{{- end }}

{{- /* How many jobs a pod of dispatch runs at once: the sum of its queues, of which one without a number has 64. */ -}}
{{- define "posthaste.slots" -}}
{{- $slots := 0 }}
{{- range splitList "," (.Values.dispatch.queues | default "default") }}
{{- $parts := splitList "=" (trim .) }}
{{- $slots = add $slots (ternary 64 (last $parts | int) (eq (len $parts) 1)) }}
{{- end }}
{{- $slots }}
{{- end }}

{{- define "posthaste.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* OUTBOX_ROLE of a component. Where no control runs, dispatch ends lapsed leases and trims the history as well. */ -}}
{{- define "posthaste.roles" -}}
{{- if eq .component "control" }}reap
{{- else if eq .component "dispatch" }}dispatch{{ if not .values.control.enabled }},reap{{ end }}
{{- else if eq .component "api" }}api{{ if .values.api.console }},console{{ end }}
{{- else }}{{ .component }}
{{- end }}
{{- end }}

{{- /* The settings of people's sign-in at a provider; the secret of the client stays in its Secret. */ -}}
{{- define "posthaste.consoleOIDC" -}}
{{- if .client }}
{{- $granted := list }}
{{- range $value, $capabilities := .capabilities }}{{ $granted = append $granted (printf "%s=%s" $value (join "+" $capabilities)) }}{{ end }}
{{- range $name, $value := dict
  "OUTBOX_CONSOLE_OIDC_CLIENT" .client "OUTBOX_OIDC_ISSUER" .issuer "OUTBOX_CONSOLE_OIDC_SCOPES" .scopes
  "OUTBOX_OIDC_NAME_CLAIM" .nameClaim "OUTBOX_OIDC_TENANT_CLAIM" .tenantClaim "OUTBOX_OIDC_CAPABILITY_CLAIM" .capabilityClaim
  "OUTBOX_OIDC_CAPABILITIES" (join "," $granted) "OUTBOX_OIDC_ALL_TENANTS" .allTenants }}
{{- if $value }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- if .existingSecret }}
{{ include "posthaste.secretEnv" (dict "name" "OUTBOX_CONSOLE_OIDC_SECRET" "secret" .existingSecret "key" .secretKey) }}
{{- end }}
{{- end }}
{{- end }}

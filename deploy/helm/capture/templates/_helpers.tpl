{{- define "capture.labels" -}}
app.kubernetes.io/name: capture
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "capture.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "capture.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "capture.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What follows gets {root, part}: the values of a part ("node", "status", "verify") override the common ones. */ -}}
{{- define "capture.identity" -}}
automountServiceAccountToken: false
{{- with .part.serviceAccountName | default .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "capture.environment" -}}
- {name: CAPTURE_CONFIG, value: /etc/capture/capture.toml}
- {name: NATS_URL, value: {{ .Values.nats.url | quote }}}
{{- range $name, $variable := dict "ca" "NATS_CA" "cert" "NATS_CERT" "creds" "NATS_CREDS" "key" "NATS_KEY" "nkey" "NATS_NKEY" }}
{{- with index $.Values.nats $name }}
- {name: {{ $variable }}, value: /secrets/nats/{{ . }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "capture.mounts" -}}
- {name: config, mountPath: /etc/capture, readOnly: true}
{{- range $name, $secret := merge (dict) (.part.secrets | default dict) .root.Values.secrets }}
{{- if $secret }}
- {name: {{ $name }}, mountPath: /secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "capture.volumes" -}}
- name: config
  configMap: {name: {{ .root.Release.Name }}-config}
{{- range $name, $secret := merge (dict) (.part.secrets | default dict) .root.Values.secrets }}
{{- if $secret }}
- name: {{ $name }}
  secret: {secretName: {{ $secret }}, defaultMode: 0400}
{{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

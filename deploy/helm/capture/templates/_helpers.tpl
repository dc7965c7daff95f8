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

{{- define "capture.environment" -}}
- {name: CAPTURE_CONFIG, value: /etc/capture/capture.toml}
- {name: NATS_URL, value: {{ .Values.nats.url | quote }}}
- {name: NATS_CA, value: /secrets/nats/ca.pem}
- {name: NATS_CERT, value: /secrets/nats/client.pem}
- {name: NATS_KEY, value: /secrets/nats/client-key.pem}
{{- end }}

{{- define "capture.mounts" -}}
- {name: config, mountPath: /etc/capture, readOnly: true}
- {name: nats, mountPath: /secrets/nats, readOnly: true}
- {name: store, mountPath: /secrets/store, readOnly: true}
- {name: page, mountPath: /secrets/page, readOnly: true}
{{- if .Values.secrets.keys }}
- {name: keys, mountPath: /secrets/keys, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "capture.volumes" -}}
- name: config
  configMap: {name: {{ .Release.Name }}-config}
- name: nats
  secret: {secretName: {{ .Values.secrets.nats }}, defaultMode: 0400}
- name: store
  secret: {secretName: {{ .Values.secrets.store }}, defaultMode: 0400}
- name: page
  secret: {secretName: {{ .Values.secrets.page }}, defaultMode: 0400}
{{- if .Values.secrets.keys }}
- name: keys
  secret: {secretName: {{ .Values.secrets.keys }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{/* Names are fixed: there is one Baton in a cluster, as there is one set of its definitions. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "baton.image" -}}
image: {{ printf "%s/%s:%s" .root.Values.image.registry .name (.root.Values.image.tag | default .root.Chart.AppVersion) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{- define "baton.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where a Pod may run, after what the chart says itself. */}}
{{- define "baton.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Over nodes, and over zones if there are some. */}}
{{- define "baton.spread" -}}
topologySpreadConstraints:
  {{- $component := . }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "baton.selector" $component | nindent 8 }}
  {{- end }}
{{- end }}

{{/* A new Pod for a changed configuration would end connections: dataplanes and shims read theirs again instead. */}}
{{- define "baton.podAnnotations" -}}
{{- with . }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What Pod Security `restricted` asks of a Pod that needs nothing of its node. */}}
{{- define "baton.restrictedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "baton.restrictedContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

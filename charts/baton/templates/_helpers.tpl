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
{{- $image := printf "%s/%s" .root.Values.image.registry .name }}
{{- with get .root.Values.image.digests .name }}
image: {{ printf "%s@%s" $image . }}
{{- else }}
image: {{ printf "%s:%s" $image (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{- define "baton.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A class of the user's, or of the chart's. */}}
{{- define "baton.priority" -}}
{{- if .values.priorityClassName }}
priorityClassName: {{ .values.priorityClassName }}
{{- else if .root.Values.priorityClasses.create }}
priorityClassName: {{ .name }}
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

{{/* Where one of several alike may run: apart from the others. The scheduler leaves out nodes that lack the key of any one
constraint, and with them all spreading; many clusters have no zones, so that these are a preference beside the user's. Those
of the revision before do not count: they end, and the new ones would go where these are not, even if that is one node. */}}
{{- define "baton.spread" -}}
{{- $alike := dict "matchLabels" (include "baton.selector" .component | fromYaml) -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{- toYaml $alike | nindent 6 }}
    matchLabelKeys: [pod-template-hash]
{{- $zones := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "topology.kubernetes.io/zone" "labelSelector" $alike) }}
{{- $apart := dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $zones)) }}
{{- $affinity := merge (deepCopy (.values.affinity | default dict)) $apart }}
{{- include "baton.placement" (merge (dict "affinity" $affinity) (deepCopy .values)) }}
{{- end }}

{{/* A selector's labels stand above the user's. */}}
{{- define "baton.podLabels" -}}
{{- $own := include "baton.selector" .component | fromYaml -}}
labels: {{- toYaml (merge $own (deepCopy (.values.podLabels | default dict))) | nindent 2 }}
{{- end }}

{{- define "baton.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "baton.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with .values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
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

{{/* The last of the legs' ports. */}}
{{- define "baton.lastLegPort" -}}
{{- if .legPorts.last }}{{ int .legPorts.last }}{{ else if eq .kind "DaemonSet" }}29999{{ else }}49999{{ end }}
{{- end }}

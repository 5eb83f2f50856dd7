{{/* Names are fixed: there is one Baton in a cluster, as there is one set of its definitions. Several classes of dataplanes are
one release, below. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .class }}
baton.dev/class: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The same above the user's, `more`: a key that is there twice is refused. */}}
{{- define "baton.labelsAnd" -}}
{{- toYaml (merge (fromYaml (include "baton.labels" .)) (deepCopy (.more | default dict))) }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The Pods of one class of dataplanes, by its key. */}}
{{- define "baton.classSelector" -}}
{{ include "baton.selector" "lb-dataplane" }}
baton.dev/class: {{ . | quote }}
{{- end }}

{{/* The classes of dataplanes, as JSON: of each its key, which Pods have as a label; the names of its objects and of its Service;
its values. The first is `dataplane`, whose key stays `default` whatever the class is called: a workload's selector can never be
changed. The others are `dataplaneClasses` over it; that one's labels are not theirs, or policies that choose it had them, too. */}}
{{- define "baton.classes" -}}
{{- $first := .Values.dataplane }}
{{- $classes := list (dict "key" "default" "path" "dataplane" "name" "baton-lb-dataplane" "service" "baton" "values" $first) }}
{{- range $key, $own := .Values.dataplaneClasses }}
{{- $path := printf "dataplaneClasses.%s" $key }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$" $key) }}
{{- fail (printf "dataplaneClasses: %q is no name of a class: expected at most 40 of a-z, 0-9 and -, with no - at an end" $key) }}
{{- end }}
{{- if has $key (list "default" $first.class.name) }}
{{- fail (printf "%s: the class that `dataplane` describes has this name or label: choose another" $path) }}
{{- end }}
{{- if ($own.class).name }}
{{- fail (printf "%s.class.name: the key is the class's name: leave it out" $path) }}
{{- end }}
{{- $class := merge (dict "name" $key "default" false "labels" dict) (omit $first.class "name" "default" "labels") }}
{{- $values := mergeOverwrite (deepCopy (omit $first "class")) (dict "class" (deepCopy $class)) (deepCopy $own) }}
{{- range $other := $classes }}
{{- include "baton.together" (list $other (dict "path" $path "values" $values)) }}
{{- end }}
{{- $name := printf "baton-lb-dataplane-%s" $key }}
{{- $classes = append $classes (dict "key" $key "path" $path "name" $name "service" (printf "baton-%s" $key) "values" $values) }}
{{- end }}
{{- toJson $classes }}
{{- end }}

{{/* Refuses two classes that cannot be in one cluster. */}}
{{- define "baton.together" -}}
{{- $one := index . 0 }}
{{- $two := index . 1 }}
{{- if and $one.values.class.default $two.values.class.default }}
{{- fail (printf "%s and %s: class.default is true of both: set it to false of one" $one.path $two.path) }}
{{- end }}
{{- /* They listen at the same ports, and an interface has one steering program. Whether an affinity keeps them apart is not seen. */}}
{{- if and (eq $one.values.kind "DaemonSet") (eq $two.values.kind "DaemonSet") }}
{{- $apart := false }}
{{- range $label, $value := $one.values.nodeSelector }}
{{- if and (hasKey $two.values.nodeSelector $label) (ne $value (get $two.values.nodeSelector $label)) }}
{{- $apart = true }}
{{- end }}
{{- end }}
{{- if not $apart }}
{{- $why := "two dataplanes on the network of one node collide (ports 9900 and 9910, the interface)" }}
{{- $change := "give both a nodeSelector with the same label and different values, or one of them kind: Deployment" }}
{{- fail (printf "%s and %s: both are of kind DaemonSet, and %s: %s" $one.path $two.path $why $change) }}
{{- end }}
{{- end }}
{{- if not (or (eq $one.values.service.type "ClusterIP") (eq $two.values.service.type "ClusterIP")) }}
{{- $taken := list }}
{{- if $one.values.service.enabled }}{{ range $one.values.service.ports }}{{ $taken = append $taken (int .nodePort) }}{{ end }}{{ end }}
{{- range $two.values.service.enabled | ternary $two.values.service.ports list }}
{{- if and .nodePort (has (int .nodePort) $taken) }}
{{- fail (printf "%s and %s: both have nodePort %d: give %s.service.ports of its own" $one.path $two.path (int .nodePort) $two.path) }}
{{- end }}
{{- end }}
{{- end }}
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

{{/* Where a Pod may run, after what the chart says itself: the programs are Linux's, and a DaemonSet would go to every node. */}}
{{- define "baton.placement" -}}
nodeSelector: {{- toYaml (merge (deepCopy (.nodeSelector | default dict)) (dict "kubernetes.io/os" "linux")) | nindent 2 }}
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
{{- $alike := dict "matchLabels" (fromYaml .selector) -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{- toYaml $alike | nindent 6 }}
    matchLabelKeys: [pod-template-hash]
{{- $zones := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "topology.kubernetes.io/zone" "labelSelector" $alike) }}
{{- $apart := dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $zones)) }}
{{- $affinity := merge (deepCopy (.values.affinity | default dict)) $apart }}
{{ include "baton.placement" (merge (dict "affinity" $affinity) (deepCopy .values)) }}
{{- end }}

{{/* A selector's labels stand above the user's. */}}
{{- define "baton.podLabels" -}}
{{- $own := fromYaml .selector -}}
labels: {{- toYaml (merge $own (deepCopy (.values.podLabels | default dict))) | nindent 2 }}
{{- end }}

{{- define "baton.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "baton.labels" (dict "root" .root "component" .component "class" .class) | nindent 4 }}
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

{{/* What Pod Security `restricted` asks of a Pod that needs nothing of its node. OpenShift gives each namespace users of its own,
and refuses a Pod that asks for another. */}}
{{- define "baton.restrictedPod" -}}
securityContext:
  runAsNonRoot: true
  {{- if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
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

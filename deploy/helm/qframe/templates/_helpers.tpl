{{- define "qframe.name" -}}
{{- if contains "qframe" .Release.Name -}}{{ .Release.Name | trunc 30 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-qframe" (.Release.Name | trunc 23 | trimSuffix "-") }}{{- end -}}
{{- end -}}

{{- define "qframe.labels" -}}
app.kubernetes.io/name: qframe
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "qframe.image" -}}
{{ required "image.repository: the image of your application" .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}

{{- define "qframe.tokenSecret" -}}
{{ required "web.tokenSecret.name: a Secret with the token of the dashboard's API" .Values.web.tokenSecret.name }}
{{- end -}}

{{- /* A worker of the values over what workers.default of this chart has. */ -}}
{{- define "qframe.worker" -}}
{{- $usual := dict "queue" "default" "connection" "" "timeout" 60 "grace" 5 "concurrency" 1 "processes" 1 "args" list "replicas" 1 "resources" dict -}}
{{- $keda := dict "enabled" false "minReplicas" 0 "maxReplicas" 10 "jobsPerReplica" 10 "pollingInterval" 15 "cooldownPeriod" 300 "queue" "" "fallbackReplicas" 1 -}}
{{- $worker := mergeOverwrite $usual (deepCopy (omit . "keda")) -}}
{{- $_ := set $worker "keda" (mergeOverwrite $keda (deepCopy (default dict .keda))) -}}
{{- toYaml $worker -}}
{{- end -}}

{{- define "qframe.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

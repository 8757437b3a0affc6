{{- define "pidlease.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pidlease.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pidlease.labels" -}}
{{ include "pidlease.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "pidlease.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "pidlease.fullname" .) -}}
{{- end -}}

{{- define "pidlease.checks" -}}
{{- if not (or .Values.insecure .Values.tls.secret) -}}
{{- fail "clients need no login: name a certificate by tls.secret, or set insecure=true and say in networkPolicy.from who may connect" -}}
{{- end -}}
{{- if and (eq .Values.log "kafka") (not .Values.kafka.upstream) -}}
{{- fail "log=kafka needs kafka.upstream: HOST:PORT,... of Kafka's brokers" -}}
{{- end -}}
{{- if and (eq .Values.coordination "kafka") (ne .Values.log "kafka") -}}
{{- fail "coordination=kafka needs log=kafka" -}}
{{- end -}}
{{- if and (ne .Values.coordination "auto") .Values.zookeeper.servers -}}
{{- fail (printf "coordination=%s and zookeeper.servers are two coordinators: name one" .Values.coordination) -}}
{{- end -}}
{{- if and (or .Values.shared (gt (int .Values.replicas) 1)) (or (ne .Values.log "kafka") (eq .Values.coordination "files")) -}}
{{- fail "shared, and replicas=2, where the second server stands by, need log=kafka, and not coordination=files" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 2) (not .Values.shared) -}}
{{- fail "more than 2 replicas need shared=true: of others, one serves and one stands by" -}}
{{- end -}}
{{- if and .Values.shared .Values.kafka.advertise -}}
{{- fail "shared=true has no kafka.advertise: clients connect to each pod by its own name" -}}
{{- end -}}
{{- if and .Values.shared .Values.tls.secret (not .Values.tls.serverPrincipals) -}}
{{- fail "shared=true with tls.secret needs tls.serverPrincipals: servers know one another by the users of their certificates" -}}
{{- end -}}
{{- if and .Values.kafka.sasl.mechanism (not .Values.kafka.sasl.secret) -}}
{{- fail "kafka.sasl.mechanism needs kafka.sasl.secret: the secret with user and password" -}}
{{- end -}}
{{- end -}}

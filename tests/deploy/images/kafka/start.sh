# The variable KAFKA_A_B becomes the setting a.b. The first start formats the storage.
set -eu
settings=/tmp/server.properties
env | grep '^KAFKA_' | while IFS='=' read -r name value; do
  printf '%s=%s\n' "$(printf %s "${name#KAFKA_}" | tr 'A-Z_' 'a-z.')" "$value"
done >"$settings"
java -Xmx256m -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
  -t "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" -c "$settings"
exec java -Xmx256m -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' kafka.Kafka "$settings"

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The child process of `load.LoadProcess`: Kafka's own producer with its defaults (idempotent, acks=all).
 *
 * <p>Questions and answers are those of producer.py, so that both clients are told their turns alike.
 */
public final class JavaProducer implements AutoCloseable {
    /** Different payloads; incompressible, in case anything compresses. */
    private static final int POOL_RECORDS = 4096;

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final String topic;
    private final String bootstrap;
    private final byte[][] payloads;
    private final KafkaProducer<byte[], byte[]> producer;
    private final Queue<String> failures = new ConcurrentLinkedQueue<>();
    private final Callback onDelivery =
            (metadata, error) -> {
                if (error != null) {
                    failures.add(error.toString());
                }
            };

    private JavaProducer(JsonNode start) {
        topic = start.get("topic").asText();
        bootstrap = start.get("bootstrap").asText();
        payloads = new byte[POOL_RECORDS][start.get("record_bytes").asInt()];
        Random random = new Random();
        for (byte[] payload : payloads) {
            random.nextBytes(payload);
        }
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(JSON.convertValue(start.get("settings"), new TypeReference<Map<String, Object>>() {}));
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private Map<String, Object> answer(JsonNode question) {
        return question.has("send") ? send(question.get("send").asInt()) : Map.of("stored", stored());
    }

    private Map<String, Object> send(int count) {
        long cpuBefore = SYSTEM.getProcessCpuTime();
        long before = System.nanoTime();
        for (int n = 0; n < count; n++) {
            producer.send(new ProducerRecord<>(topic, 0, null, payloads[n % POOL_RECORDS]), onDelivery);
        }
        producer.flush();
        long elapsed = System.nanoTime() - before;
        long cpu = SYSTEM.getProcessCpuTime() - cpuBefore;
        if (!failures.isEmpty()) {
            return Map.of("error", failures.size() + " of " + count + " records failed: " + failures.peek());
        }
        return Map.of("elapsed_s", elapsed / 1e9, "client_cpu_s", cpu / 1e9);
    }

    private long stored() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition place = new TopicPartition(topic, 0);
            long end = consumer.endOffsets(List.of(place)).get(place);
            return end - consumer.beginningOffsets(List.of(place)).get(place);
        }
    }

    @Override
    public void close() {
        producer.close();
    }

    /** Answer until the input ends. */
    public static void main(String[] args) throws Exception {
        try (JavaProducer producer = new JavaProducer(JSON.readTree(args[0]));
                BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println(JSON.writeValueAsString(producer.answer(JSON.readTree(line))));
                System.out.flush();
            }
        }
    }
}

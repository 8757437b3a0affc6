"""The Kafka listener: Kafka's protocol on one port."""

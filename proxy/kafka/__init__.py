"""The Kafka door: Kafka's protocol on one listening port."""

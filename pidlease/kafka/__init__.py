"""Facts about the Kafka protocol that several layers share."""

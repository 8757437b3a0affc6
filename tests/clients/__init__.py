"""Other people's clients and tools, unmodified, against this project's Kafka door."""

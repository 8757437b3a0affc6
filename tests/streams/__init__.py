"""Durable Streams: the official suite, the official client with kills, Kafka clients."""

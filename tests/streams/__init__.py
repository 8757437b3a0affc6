"""Durable Streams: the official suite, the official client with kills, and Kafka clients beside it."""

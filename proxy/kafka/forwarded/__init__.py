"""Handlers with Kafka as the log: they forward what pidlease does not serve to Kafka's brokers."""

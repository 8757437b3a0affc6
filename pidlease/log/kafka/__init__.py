"""Kafka as the log."""

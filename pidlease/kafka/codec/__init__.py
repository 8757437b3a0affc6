"""Encodes and decodes Kafka's messages, for servers and for clients."""

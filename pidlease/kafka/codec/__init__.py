"""Kafka's messages as bytes: for servers, and for what asks servers."""

"""The Kafka client: connections, metadata and requests, of servers and of applications."""

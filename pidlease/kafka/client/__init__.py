"""The client layer beneath the log in front of Kafka: connections, the cluster, requests."""

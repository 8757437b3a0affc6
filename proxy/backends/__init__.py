"""The backends: the embedded log and Kafka, and the coordinator of both."""

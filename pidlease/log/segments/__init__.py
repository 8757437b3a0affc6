"""The embedded log: partitions on disk as segments in Kafka's format, with indexes."""

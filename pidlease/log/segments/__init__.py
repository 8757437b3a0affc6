"""One partition on the disk: segments in Kafka's format, indexes, and how far it is durable."""

"""The partitions' logs, on disk or in Kafka, with one interface."""

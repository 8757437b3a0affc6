"""One partition's log, on disk or in Kafka, with the same interface."""

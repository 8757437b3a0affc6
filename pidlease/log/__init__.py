"""One partition's log, on disk or in Kafka, behind the same ports."""

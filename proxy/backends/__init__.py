"""The embedded log and Kafka as backends: what is built for each."""

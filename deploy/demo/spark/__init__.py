"""`make demo-spark`: a real Kafka copied by Spark through the proxy, killed on the way, audited."""

"""In front of Kafka: requests that are the cluster's own affair go on to the right broker."""

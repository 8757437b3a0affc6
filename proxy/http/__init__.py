"""The HTTP listener: leases, producers, topics and records."""

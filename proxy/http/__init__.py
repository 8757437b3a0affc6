"""The HTTP door: leases, topics, records, and what is known of producers."""

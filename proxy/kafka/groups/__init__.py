"""Consumer groups by Kafka's classic protocol: memberships in memory, committed offsets durable."""

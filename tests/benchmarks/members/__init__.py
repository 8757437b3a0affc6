"""Many active servers without logs and listeners: how they agree, and what that costs.

Membership, pings, map and deciders are the server's own. `on_kafka` has a real Kafka as the
coordinator; `simulated` has one in memory, and a clock that jumps over the time in which nothing
happens.
"""

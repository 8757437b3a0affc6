"""Real servers for tests and benchmarks: start, wait until ready, kill, stop.

`pidlease.PidleaseServer` runs this project's own proxy, `kafka.KafkaServer` a real Apache
Kafka. Both listen on loopback only and end only the process they started, by its pid.
"""

"""ZooKeeper as the coordinator: the PID sequence of all servers that share it."""

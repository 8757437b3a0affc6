"""State that servers share: PID sequence, names, writers, members; in files, ZooKeeper or Kafka."""

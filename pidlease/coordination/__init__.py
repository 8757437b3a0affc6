"""State that servers share, in files or in ZooKeeper: PID sequence, name bindings, writers' ids."""

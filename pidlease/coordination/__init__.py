"""Who owns which numbers and names: the PID sequence, from a file or from ZooKeeper."""

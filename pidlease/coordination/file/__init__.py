"""The coordinator from files, for a server without ZooKeeper."""

"""What servers share: the PID sequence and the bindings of names, in files or in ZooKeeper."""

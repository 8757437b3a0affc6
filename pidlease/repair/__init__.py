"""Offline repair of partitions with damaged records: what would be lost, and the cut."""

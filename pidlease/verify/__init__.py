"""Looking at a whole data directory offline, without changing anything in it.

directory   meta.json, topics, and the order of all the rest
snapshots   the snapshots, and the PID sequence
partition   one partition's segments from end to end: bytes, offsets, the torn tail
indexes     the two sparse indexes, held against the log as it goes by
history     sequences: the same judge and the same fold as in a running server
offsets     the journal of committed offsets
access      a file system that cannot be changed, and keeping servers out
report      what was found
"""

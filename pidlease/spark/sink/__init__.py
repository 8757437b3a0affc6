"""The exactly-once sink.

Each source (topic, partition) has a producer name, and so a PID; its numbers are the source's
offsets. A name is granted once for each run, before it starts, under a generation that fences every
run before. A task sends ranges that follow one another from the H that the driver knows, so all
attempts of a task send the same, and what is stored already is a duplicate.
"""

"""The exactly-once sink.

Each source partition has a producer name, and so a PID. Its sequence numbers are the source's
offsets. The driver leases each name once per run, before the run starts; the new generation fences
all earlier runs. A task continues from the high sequence that the driver knows, so all attempts of
a task send the same ranges, and what is stored already is a duplicate.
"""

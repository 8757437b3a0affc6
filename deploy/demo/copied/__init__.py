"""The demo's third part: topics copied from one server to another, each record once.

The source is written all the time. Meanwhile the copier is killed, the destination is, the copier
and the source are at once; and a copier is stopped in the middle (SIGSTOP), another one takes over,
and it wakes up again: a zombie with batches in flight. Then both sides are compared.
"""

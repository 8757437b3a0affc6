"""`make demo`: real rows, unmodified clients, a server that is killed, and a full count at the end.

Nothing here is imported by the server, and nothing here helps it: the clients are the released
ones, and the proxy is a child process that knows nothing of the demo.
"""

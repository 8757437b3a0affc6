"""The demo's second part: a producer that remembers nothing but its name.

It leases its PID, from ZooKeeper where there is one, and appends under policy strict. It is killed,
so is the proxy, so are both at once; each time it comes back by its name and asks where it was. At
last it is stopped in the middle (SIGSTOP), a successor takes its name, and it wakes up again: a
zombie with records in flight.
"""

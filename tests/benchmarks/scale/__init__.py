"""How large and how long: figures of a full server, where the comparisons are ratios.

Each measure is a function in a module of its own, runs in a process of its own (what it takes of
memory is then its own), and returns figures with their units and what is wanted of them.
"""

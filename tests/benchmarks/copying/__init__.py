"""How fast topics are copied: `pidlease copy`, a plain loop of aiokafka, and MirrorMaker 2.

All of them copy the same records between the same two ends, by turns: those whose turn it is not
are stopped (SIGSTOP). `python -m tests.benchmarks.scale --only copy`, and `copy-in-front`.
"""

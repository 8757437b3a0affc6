"""Servers of the Durable Streams protocol, by turns: pidlease, Ursula, the reference server.

Each syncs an append before it answers. What is measured is what the protocol gives to all of them:
appends with Producer-Id, Producer-Epoch and Producer-Seq, duplicates, and reads.
"""

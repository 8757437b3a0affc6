"""Consumer groups by Kafka's classic protocol: memberships in memory, committed offsets durable.

steps         what goes into a group and what comes out of it
members       the members of a group: protocols, leader, static members
rebalance     a group's states, and how it comes from one generation to the next
group         what members ask, step by step; no clock, no I/O, in these four
subscription  which topics the members of a consumer group read
ports         what is asked of whoever stores offsets
coordinator   all groups: timers, waiting answers, what is stored
expiry        what leaves: expired offsets, those of deleted topics, empty groups
api           the requests: membership_api, offsets_api (by hand: offsets_wire), admin_api
"""

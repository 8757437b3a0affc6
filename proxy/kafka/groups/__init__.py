"""Consumer groups by Kafka's classic protocol: memberships in memory, committed offsets durable.

steps         what goes into a group and what comes out of it
members       the members of a group: protocols, leader, static members
group         a group's states, and what members ask, step by step; no clock, no I/O, in these three
subscription  which topics the members of a consumer group read
offset_port   what groups need of the store of offsets
coordinator   all groups: timers, waiting responses, stored offsets
expiry        removes expired offsets, those of deleted topics, and empty groups
api           the requests: membership_api, offsets_api, group_admin_api
"""

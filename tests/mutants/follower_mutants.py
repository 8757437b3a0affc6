"""What must not go unnoticed where servers follow the producers' states of each other."""

from typing import Final

from tests.mutants.mutant import Mutant

_FEEDS: Final = "pidlease/engine/state_feeds.py"
_FOLLOWER: Final = "pidlease/engine/state_follower.py"
_UNLOADED: Final = "pidlease/engine/unloaded_partitions.py"

_OF_FEEDS: Final = "tests/unit/engine/test_state_feeds.py"
_OF_FOLLOWERS: Final = "tests/unit/engine/test_state_follower.py"
_OF_STREAMS: Final = "tests/unit/storage/test_state_stream.py"

FOLLOWERS: Final = (
    Mutant(
        "states of a partition are sent that another server may own",
        _FEEDS,
        " and self._cluster.still_owns(slots, name, source.epoch)\n",
        "\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "the offset for followers is after batches in flight",
        _FEEDS,
        "        return source.applied_offset\n",
        "        return source.next_offset\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "an answer that was lost is not sent again",
        _FEEDS,
        "            each.confirm() if arrived else each.repeat()\n",
        "            each.confirm()\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "a request that is late counts",
        _FEEDS,
        "        if request.number <= feed.number:\n",
        "        if False:\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "states that are not complete are read on from",
        _UNLOADED,
        "UnloadedPartition(rows._replace(next_offset=-1, producers={}))",
        "UnloadedPartition(rows._replace(producers={}))",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "a snapshot has an offset of producers that are gone",
        _UNLOADED,
        "None if unloaded is None or unloaded.snapshotted.next_offset < 0 else unloaded.rows()\n",
        "None if unloaded is None else unloaded.rows()\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "an older beginning hides that history is missing",
        _UNLOADED,
        "        if rows.next_offset >= known.snapshotted.next_offset:\n",
        "        if True:\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "a server that does not answer is asked again and again",
        _FOLLOWER,
        "            self._left_out[member.node_id] = time.monotonic() + _LEFT_OUT_SECONDS\n",
        "            pass\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "the last part counts before all parts are there",
        _FEEDS,
        "        ends = not fed.waits\n",
        "        ends = True\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "an appended batch is no change for followers",
        "pidlease/engine/partition.py",
        "                    table.changed.add(pid)\n",
        "                    pass\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "a batch that was read from the log is no change for followers",
        "pidlease/engine/producer_table.py",
        "                        self.changed.add(pid)\n",
        "                        pass\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "a change goes to one follower only",
        _FEEDS,
        "                fed.changed |= changed\n",
        "                fed.changed |= changed\n                break\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "the offset of a snapshot's partition moves on without states",
        _FEEDS,
        "        offset = _offset(source) if owned else fed.offset\n",
        "        offset = _offset(source)\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "changes of a partition that no server follows are kept",
        _FEEDS,
        "            source.table.changed = None\n",
        "            pass\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "changes are added to states that they do not follow",
        _UNLOADED,
        "        if onto is not None and known is not onto:\n",
        "        if onto is not None and known is None:\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "an older state replaces a newer one",
        _UNLOADED,
        "                if before is None or _is_older(pid, before, state):\n",
        "                if True:\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "a follower keeps states of batches that Kafka has lost",
        _FOLLOWER,
        "        if owned and onto is None:\n",
        "        if False:\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "states of another follower replace newer ones",
        _FEEDS,
        "        return StateUpdate(_rows(name, source, offset, rows), begins, ends, owned)\n",
        "        return StateUpdate(_rows(name, source, offset, rows), begins, ends, True)\n",
        (_OF_FEEDS,),
    ),
    Mutant(
        "a start begins with what another server knew of a longer log",
        "pidlease/engine/recovery.py",
        "        elif entry.needed_end > min(log.end_offset, reached.get(name, log.end_offset)):\n",
        "        elif entry.needed_end < 0:\n",
        ("tests/unit/engine/test_recovery.py",),
    ),
    Mutant(
        "states go on from a log that ends before their last batches",
        "pidlease/storage/snapshot_rows.py",
        "        return max(self.next_offset, self.end_offset)\n",
        "        return self.next_offset\n",
        ("tests/unit/engine/test_recovery.py",),
    ),
    Mutant(
        "what is known before Kafka cut a log is added to what is known after",
        "pidlease/engine/unloaded_partitions.py",
        "        if known is not None and known.is_newer_log(rows):\n            return known\n",
        "",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "what is known after Kafka cut a log is added to what is known before",
        "pidlease/engine/unloaded_partitions.py",
        "        same = begun or rows.leader_epoch == known.leader_epoch\n",
        "        same = True\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "the stand-in PID of a dropped producer id is taken",
        _UNLOADED,
        "                self._leases.has_name(pid) for pid, _ in some\n",
        "                True for pid, _ in some\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "after an answer that was not noted the feed goes on",
        _FOLLOWER,
        " what changes from now on is not enough.\n            self._begin()\n",
        "\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "a change without a beginning is taken for all producers",
        _FOLLOWER,
        "            self._parts[name] = _Part(is_all=False)\n",
        "            self._parts[name] = _Part(is_all=True)\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "states of a partition that this server serves are taken",
        _FOLLOWER,
        "        if partition is None or not partition.elsewhere or"
        " partition.topic_id != rows.topic_id:\n",
        "        if partition is None or partition.topic_id != rows.topic_id:\n",
        (_OF_FOLLOWERS,),
    ),
    Mutant(
        "damaged states are taken",
        "pidlease/storage/state_stream.py",
        "    if crc32c(content[_CRC_BYTES:]) != int.from_bytes(content[:_CRC_BYTES]):\n",
        "    if False:\n",
        (_OF_STREAMS,),
    ),
    Mutant(
        "a takeover asks no other server",
        "pidlease/engine/topics/partition_moves.py",
        "        if self.fetch is None:\n",
        "        if True:\n",
        (_OF_FOLLOWERS,),
    ),
)

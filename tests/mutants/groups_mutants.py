"""Broken consumer groups: what is stored of them, who may commit, who is told what."""

from typing import Final

from tests.mutants.mutant import Mutant

_JOURNAL: Final = "pidlease/storage/offsets/offset_journal.py"
_STORE: Final = "pidlease/storage/offsets/offset_store.py"
_ROOM: Final = "pidlease/storage/offsets/offset_room.py"
_CONNECTION: Final = "proxy/kafka/client_connection.py"
_TABLE: Final = "pidlease/storage/offsets/offset_table.py"
_GROUP: Final = "proxy/kafka/groups/group.py"
_COORDINATOR: Final = "proxy/kafka/groups/group_coordinator.py"
_API: Final = "proxy/kafka/groups/offsets_api.py"
_EXPIRY: Final = "proxy/kafka/groups/offset_expiry.py"

_ON_DISK: Final = "tests/unit/storage/offsets/test_power_loss.py"
_LINES: Final = "tests/unit/storage/offsets/test_journal.py"
_STORED: Final = "tests/unit/storage/offsets/test_store.py"
_STATES: Final = "tests/unit/groups/test_group.py"
_MACHINE: Final = "tests/unit/groups/test_group_machine.py"
_WIRE: Final = "tests/kafka_listener/test_groups.py"
_BOUNDS: Final = "tests/kafka_listener/test_group_bounds.py"
_OFFSETS: Final = "tests/kafka_listener/test_group_offsets.py"

GROUPS: Final = (
    Mutant(
        "offsets found at a start are fsynced, but not written again",
        _JOURNAL,
        "                self._rewrite(file)\n",
        "",
        (_ON_DISK,),
    ),
    Mutant(
        "a commit is not fsynced",
        _JOURNAL,
        "            file.write_at(lines, self.length)\n            if self._durable:\n",
        "            file.write_at(lines, self.length)\n            if self.length < 0:\n",
        (_ON_DISK,),
    ),
    Mutant(
        "what a failed write of offsets left is not cut",
        _JOURNAL,
        "        if self._tail:\n            file.truncate(self.length)\n",
        "        if self._tail:\n",
        (_LINES,),
    ),
    Mutant(
        "a torn write of offsets is not cut at the start",
        _JOURNAL,
        "        if bad is not None:\n            self._tail = True\n",
        "        if bad is not None:\n",
        (_LINES,),
    ),
    Mutant(
        "damage in the middle of the offsets is cut off",
        _JOURNAL,
        "each.line.synced > bad.start:",
        "each.line.synced > 2**62:",
        (_LINES,),
    ),
    Mutant(
        "a torn write of offsets is taken for damage",
        _JOURNAL,
        "each.line.synced > bad.start:",
        "each.line.synced >= 0:",
        (_LINES,),
    ),
    Mutant(
        "in doubt which journal has the name, the old one is gone on with",
        _JOURNAL,
        "            if chunks.complete:\n                self._replacing = chunks.size\n",
        "",
        (_ON_DISK,),
    ),
    Mutant(
        "offsets are told before they are stored",
        _STORE,
        "        self._queue.append(_Waiting(record, offsets, taken, done))\n",
        "        self.table.apply(record)\n"
        "        self._queue.append(_Waiting(record, offsets, taken, done))\n",
        (_STORED, _ON_DISK),
    ),
    Mutant(
        "a failed commit is told",
        _STORE,
        "        if failure is None:\n            self.table.apply(record)\n",
        "        self.table.apply(record)\n",
        (_STORED, _ON_DISK),
    ),
    Mutant(
        "the journal of offsets is never written anew",
        _STORE,
        "        if length > allowed or self._journal.must_be_replaced:",
        "        if self._journal.must_be_replaced:",
        (_STORED,),
    ),
    Mutant(
        "any number of offsets",
        _ROOM,
        "        if new and self._table.entries",
        "        if new < 0 and self._table.entries",
        (_STORED,),
    ),
    Mutant(
        "what was refused stays in the journal until the next write",
        _JOURNAL,
        "                self._cut_tail(file)\n            raise\n",
        "                pass\n            raise\n",
        (_LINES,),
    ),
    Mutant(
        "an fsync of the journal that failed is forgotten",
        _JOURNAL,
        "            self.doubtful = True\n            raise\n",
        "            raise\n",
        (_LINES,),
    ),
    Mutant(
        "the journal is written anew at every write",
        _STORE,
        "        self._replace_from = _SLACK_BYTES + 2 * self._journal.length\n",
        "        self._replace_from = 0\n",
        (_STORED,),
    ),
    Mutant(
        "a group without members is not yet stored as empty, and its offsets expire",
        _EXPIRY,
        "(group.unsaved or group.reads(topic))",
        "group.reads(topic)",
        (_BOUNDS,),
    ),
    Mutant(
        "who waits for other members holds the memory of its request",
        _CONNECTION,
        "        size, self.request_size = self.request_size, 0\n",
        "        size = 0\n",
        (_BOUNDS,),
    ),
    Mutant(
        "offsets of a deleted topic are told of the next one",
        _TABLE,
        "        if part is not None and part.topic_id != topic_id:\n",
        "        if part is not None and part.topic_id == 0:\n",
        (_STORED,),
    ),
    Mutant(
        "a member of any generation commits",
        _GROUP,
        "        error = self._check_current(member_id, instance_id, generation)\n"
        "        if error is not ErrorCode.none:\n            return error\n"
        "        if self.state is State.COMPLETING:\n",
        "        error = self._check_member(member_id, instance_id)\n"
        "        if error is not ErrorCode.none:\n            return error\n"
        "        if self.state is State.COMPLETING:\n",
        (_STATES, _MACHINE),
    ),
    Mutant(
        "anybody commits",
        _GROUP,
        "        if generation < 0 and self.state is State.EMPTY:\n",
        "        if generation < 0:\n",
        (_STATES, _OFFSETS),
    ),
    Mutant(
        "an assignment is told before it is stored",
        _GROUP,
        "            self._assignments = request.assignments\n",
        "            self._assignments = request.assignments\n"
        "            self.stored(0, self.generation, failed=False)\n",
        (_STATES,),
    ),
    Mutant(
        "an assignment of an older generation counts",
        _GROUP,
        "        if generation != self.generation:\n            return\n",
        "",
        (_STATES, _MACHINE),
    ),
    Mutant(
        "who waits in a rebalance is taken for gone",
        _GROUP,
        "        if member.waits:\n",
        "        if member.waits and member.is_new:\n",
        (_STATES,),
    ),
    Mutant(
        "who is late for a rebalance stays a member",
        _GROUP,
        "            if member.join is None and member.instance_id is None:\n",
        "            if member.join is None and member.instance_id == '':\n",
        (_STATES,),
    ),
    Mutant(
        "who does not ask for its assignment stays a member",
        _GROUP,
        "            for member_id in list(self._pending_sync):\n"
        "                self._remove(member_id)\n"
        "            self._prepare(now)\n",
        "            self._prepare(now)\n",
        (_STATES,),
    ),
    Mutant(
        "a member that asked twice is answered once",
        _GROUP,
        "        if before is not None:\n            # The member has sent JoinGroup again",
        "        if before == '':\n            # The member has sent JoinGroup again",
        (_STATES, _MACHINE, _WIRE),
    ),
    Mutant(
        "a static member that was replaced goes on",
        _GROUP,
        "            if existing is not None and existing != member_id:\n",
        "            if existing is not None and existing == '':\n",
        (_STATES, _WIRE),
    ),
    Mutant(
        "the generation begins anew with a restart",
        _COORDINATOR,
        "            generation, protocol_type = stored.generation, stored.protocol_type\n",
        "            generation, protocol_type = 0, stored.protocol_type\n",
        (_WIRE,),
    ),
    Mutant(
        "members wait for ever when the server stops",
        _COORDINATOR,
        "            self._drop(group, ErrorCode.not_coordinator)\n",
        "            group.state = State.DEAD\n",
        (_WIRE,),
    ),
    Mutant(
        "a fetch does not wait for the commits before it",
        _API,
        "        await self._offsets.settled()\n",
        "",
        (_OFFSETS,),
    ),
    Mutant(
        "offsets of a group with members expire",
        _EXPIRY,
        "(group.unsaved or group.reads(topic))",
        "group.unsaved",
        (_OFFSETS,),
    ),
)

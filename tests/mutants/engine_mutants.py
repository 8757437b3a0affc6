"""Broken core, engine and door: what is admitted, what is answered, what is remembered."""

from typing import Final

from tests.mutants.mutant import (
    GOLDEN,
    JUDGE,
    LEASING,
    NETWORK,
    ORDER,
    PACKED,
    PARTITION,
    PRODUCE,
    READ_BUFFER,
    RECOVERY,
    RING,
    SIM,
    STATE,
    Mutant,
)

_FAILED: Final = "tests/kafka_listener/test_failed_requests.py"
_FAULTS: Final = "tests/unit/log/test_embedded_faults.py"
_HEADERS: Final = "tests/unit/kafka/test_record_batch.py"
_JUDGE: Final = "pidlease/core/judge.py"
_APPENDS: Final = "pidlease/engine/appenders/group_appender.py"
_PARTITION: Final = "pidlease/engine/partition.py"
_RECOVERY: Final = "pidlease/engine/recovery.py"
_LEASING: Final = "pidlease/engine/leases/leases.py"
_ADMITS: Final = (
    "            return judge_packed(rules, state, batch, granted)\n",
    "            return ADMIT\n",
)

_REPEATED: Final = "tests/kafka_listener/test_repeated_requests.py"
_TEMPLATE: Final = "tests/unit/kafka/test_produce_template.py"

_HOLDS: Final = (
    "        if failed is not None and failed.holds(pid, batch, verdict, known=state is not None):"
)


def _holding(kinds: str) -> tuple[str, str]:
    """Hold off only some of what has to be held off behind a failed batch."""
    return _HOLDS, f"{_HOLDS[:-1]} and verdict.kind {kinds}:"


ENGINE: Final = (
    Mutant(
        "each lease of a batch waits for a coordinator that hangs",
        "pidlease/engine/lease_service.py",
        "                if self._give_up is None:\n",
        "                if True:\n",
        ("tests/unit/engine/test_named_leases.py",),
    ),
    Mutant(
        "a state of before a hole shows a gap",
        _PARTITION,
        "offset_of(rules, state) < self.table.removed_end\n",
        "offset_of(rules, state) < 0\n",
        (PARTITION,),
    ),
    Mutant(
        "what is in flight after a hole shows no gap",
        _PARTITION,
        "        return pid not in self._in_flight and offset_of(",
        "        return offset_of(",
        (PARTITION,),
    ),
    Mutant(
        "a hole is forgotten by the next start",
        _RECOVERY,
        "    removed_end = start if offset < start or rows is None else rows.removed_end\n",
        "    removed_end = start if offset < start or rows is None else 0\n",
        (RECOVERY,),
    ),
    Mutant(
        "a state of before a hole shows no duplicates",
        _JUDGE,
        "    if verdict.kind is not Kind.GAP:\n        return verdict\n",
        "",
        (JUDGE,),
    ),
    Mutant(
        "judge always admits",
        _JUDGE,
        "    reason = malformed(rules, batch)\n    if reason:",
        "    return ADMIT\n    reason = malformed(rules, batch)\n    if reason:",
        (JUDGE, GOLDEN),
    ),
    Mutant("judge not asked (engine)", _PARTITION, *_ADMITS, (PARTITION,)),
    Mutant("judge not asked (whole lives)", _PARTITION, *_ADMITS, (SIM,)),
    Mutant("judge not asked (real clients)", _PARTITION, *_ADMITS, (NETWORK,), server=True),
    Mutant(
        "an unknown young PID may start anywhere",
        _JUDGE,
        "rules.start_young if age is Age.YOUNG else rules.start_old",
        "rules.start_old",
        (JUDGE, GOLDEN),
    ),
    Mutant(
        "an unknown young PID may start anywhere (wire)",
        _LEASING,
        "            return Age.YOUNG\n        young_after_ms = max(",
        "            return Age.OLD\n        young_after_ms = 2**62 + max(",
        (PRODUCE,),
    ),
    Mutant(
        "pushed not rolled back after a failed append",
        _PARTITION,
        "        self._in_flight.pop(pid, None)\n        self._pushed.pop(pid, None)\n",
        "",
        (PARTITION,),
    ),
    Mutant(
        "pushed not rolled back (whole lives)",
        _PARTITION,
        "        self._in_flight.pop(pid, None)\n        self._pushed.pop(pid, None)\n",
        "",
        (SIM,),
    ),
    Mutant(
        "replay skipped",
        _RECOVERY,
        "        table.replay(log.read_batches(table.next_offset), now_ms)",
        "        table.next_offset = log.end_offset",
        (RECOVERY,),
    ),
    Mutant(
        "replay skipped (whole lives)",
        _RECOVERY,
        "        table.replay(log.read_batches(table.next_offset), now_ms)",
        "        table.next_offset = log.end_offset",
        (SIM,),
    ),
    Mutant(
        "snapshot holds what is not durable",
        _PARTITION,
        "rows(self.name, dict(self.table.states))\n",
        "rows(self.name, self.producers | self._pushed)\n",
        (PARTITION,),
    ),
    Mutant(
        "snapshot's vector runs ahead of its state",
        _PARTITION,
        "position(self._appends.applied, ",
        "position(self._appends.applied + self.in_flight, ",
        (PARTITION,),
    ),
    Mutant(
        "snapshot beyond the log is used",
        _RECOVERY,
        "        elif entry.needed_end > min(log.end_offset, reached.get(name, log.end_offset)):\n",
        "        elif entry.needed_end > log.end_offset:\n",
        (RECOVERY,),
    ),
    Mutant(
        "retention ignores snapshots",
        "pidlease/engine/maintenance.py",
        "min(needed, default=0)",
        "2**62",
        (RECOVERY,),
    ),
    Mutant(
        "duplicate answered while its original is in flight",
        _PARTITION,
        "        if in_flight and kind in (Kind.DUPLICATE, Kind.OVERLAP):",
        "        if not kind and in_flight:",
        (PARTITION,),
    ),
    Mutant(
        "successors of a failed batch answered as gap",
        _PARTITION,
        *_holding("is Kind.ADMIT"),
        (PARTITION,),
    ),
    Mutant(
        "successor of a failed first batch let in",
        _PARTITION,
        *_holding("is Kind.GAP"),
        (PARTITION,),
    ),
    Mutant(
        "a failed append does not take along what is behind it",
        _APPENDS,
        "        later = [p for p in self._queue if stopped or p.pid in pids]",
        "        later = [p for p in self._queue if stopped]",
        (PARTITION,),
    ),
    Mutant(
        "two appends at once",
        _APPENDS,
        "        if self._writing:\n            return\n        group",
        "        group",
        (PARTITION,),
    ),
    Mutant(
        "ring evicts what has not expired",
        "pidlease/core/ring.py",
        '            raise RingFullError(f"all {self.capacity} lease slots are taken")',
        "            self._head, self._used = (self._head + 1) % self.capacity, self._used - 1",
        (RING,),
    ),
    Mutant(
        "a lease in flight ends",
        _LEASING,
        "        if any(partition.is_in_flight(pid) for partition in partitions):\n"
        "            return now_ms + self.lease_ms\n",
        "",
        (LEASING,),
    ),
    Mutant(
        "fold forgets the last batches",
        "pidlease/core/state.py",
        "BATCHES_KEPT: Final = 5",
        "BATCHES_KEPT: Final = 2",
        (STATE,),
    ),
    Mutant(
        "response order broken",
        "proxy/kafka/client_connection.py",
        "        while slots and slots[0].ready and not self._write_paused:\n"
        "            slot = slots.popleft()\n",
        "        while any(s.ready for s in slots) and not self._write_paused:\n"
        "            slot = next(s for s in slots if s.ready)\n"
        "            slots.remove(slot)\n",
        (ORDER,),
    ),
    Mutant(
        "requests are handled after one that failed",
        "proxy/kafka/client_connection.py",
        "        self._finishing = True\n        self._start = self._end = 0\n"
        "        self._pause()\n",
        "        self._pause()\n",
        (_FAILED,),
    ),
    Mutant(
        "a batch may claim more records than its bytes hold",
        "pidlease/kafka/records/record_batch.py",
        "        or records * RECORD_BYTES_MIN > len(data)"
        " << (attributes & CODEC_BITS and _COMPRESSED_BITS)\n",
        "",
        (_HEADERS,),
    ),
    Mutant(
        "a group has more records than a segment has offsets",
        "pidlease/engine/pending_batches.py",
        "size > GROUP_BYTES_MAX or records > GROUP_RECORDS_MAX",
        "size > GROUP_BYTES_MAX",
        (PARTITION,),
    ),
    Mutant(
        "an append that failed by a bug stays in the segment",
        "pidlease/log/segments/embedded_log.py",
        "            self._has_tail = True  # a bug: the next append removes what was written\n",
        "",
        (_FAULTS,),
    ),
    Mutant(
        "a part of a request stays in the buffer of all connections",
        "proxy/kafka/client_connection.py",
        "                self._buffer = bytearray(READ_BUFFER_BYTES)\n",
        "                pass\n",
        (READ_BUFFER,),
    ),
    Mutant(
        "a connection without a request keeps its own buffer",
        "proxy/kafka/client_connection.py",
        "            self._start = self._end = 0\n            self._buffer = self._shared_buffer\n",
        "            self._start = self._end = 0\n",
        (READ_BUFFER,),
    ),
    Mutant(
        "packed states: a repeat of the last five is let through",
        "pidlease/core/packed.py",
        "            and packed.find(_NARROW_RANGE.pack(first, last)) < 0\n",
        "",
        (PACKED,),
    ),
    Mutant(
        "packed states: the low mark stays behind",
        "pidlease/core/packed.py",
        "                lowest = keep_low(rules, lowest, last)\n",
        "",
        ("tests/property",),
    ),
    Mutant(
        "a template outlives its partition",
        "proxy/kafka/produce_api.py",
        "data is None or self.partition.gone or",
        "data is None or",
        (_REPEATED,),
    ),
    Mutant(
        "a template takes requests for another partition",
        "pidlease/kafka/codec/produce.py",
        " and frame.startswith(self._rest, _CORRELATION_END)",
        "",
        (_TEMPLATE,),
    ),
    Mutant(
        "what follows the batch is not looked at",
        "pidlease/kafka/codec/produce.py",
        "if length != end - at + 1 or frame[end] or frame[end + 1] or frame[end + 2]:",
        "if length != end - at + 1:",
        (_TEMPLATE,),
    ),
    Mutant(
        "a repeated request may be of any size",
        "proxy/kafka/produce_api.py",
        " or len(data) > self._api.batch_bytes_max:",
        ":",
        (_REPEATED,),
    ),
    Mutant(
        "a batch of a repeated request is not intact",
        "pidlease/kafka/records/record_batch.py",
        "        or crc32c(memoryview(data)[CRC_FROM:]) != crc\n",
        "",
        (_REPEATED, _TEMPLATE),
    ),
)

"""Broken streams: closes, Stream-Seq, half creations, kept sources, early appends."""

from typing import Final

from tests.mutants.mutant import Mutant

_GATE: Final = "pidlease/engine/stream_gate.py"
_CATALOG: Final = "proxy/http/streams/stream_catalog.py"
_STREAMS: Final = "tests/streams/test_streams.py"
_CLOSES: Final = f"{_STREAMS}::test_a_close_outlives_a_kill"
_KILL: Final = f"{_STREAMS}::test_what_is_acknowledged_outlives_a_kill"
_HALF: Final = f"{_STREAMS}::test_a_stream_without_its_first_record_does_not_exist"
_PAGES: Final = "proxy/http/streams/stream_pages.py"
_SHARED: Final = "tests/streams/test_shared_reads.py"
_HOLD_UP_STREAMS: Final = (
    f"{_SHARED}::test_reads_that_wait_for_kafka_hold_up_no_reads_of_other_streams"
)
_LOG_READS: Final = "proxy/http/log_reads.py"
_HOLD_UP: Final = (
    "tests/http_api/test_records_read.py"
    "::test_reads_that_wait_for_kafka_hold_up_no_reads_of_other_partitions"
)
_PIPELINED: Final = (
    "tests/http_api/test_pipelined_requests.py::test_a_malformed_request_is_refused_in_its_turn"
)
_INVALID_HEADS: Final = (
    "tests/http_api/test_pipelined_requests.py::test_an_invalid_head_is_refused_in_its_turn"
)
_HALF_CLOSED: Final = "tests/http_api/test_half_closed.py"
_GATES: Final = "tests/unit/engine/test_stream_gate.py"
_ORDER: Final = "tests/streams/test_reordering.py::test_requests_in_any_order_are_stored_in_order"

STREAMS: Final = (
    Mutant(
        "two reads that wait for Kafka hold up all reads over HTTP",
        _LOG_READS,
        "        if not partition.log_is_shared:\n",
        "        if True:\n",
        (_HOLD_UP,),
    ),
    Mutant(
        "what has arrived from Kafka counts for nothing until it is converted",
        _LOG_READS,
        "        if not self._memory.reserve(size, own=own):\n",
        "        if not self._memory.reserve(0, own=own):\n",
        (_HOLD_UP,),
    ),
    Mutant(
        "a compressed body is stored as the values of a stream",
        "proxy/http/streams/stream_requests.py",
        "        if body and coding:\n",
        "        if False:\n",
        ("tests/streams/test_immediate_streams.py::test_the_same_by_both_ways",),
    ),
    Mutant(
        "a stream's close is not read from the log",
        _GATE,
        "doubts, closed = self._doubts, await self._last_close()\n",
        "doubts, closed = self._doubts, None\n",
        (_CLOSES,),
    ),
    Mutant(
        "a batch for a stream overtakes those that wait",
        _GATE,
        "        if self._waiting and self._must_follow(pending.pid, send):\n",
        "        if self._waiting and self._must_follow(pending.pid, send) is None:\n",
        (_GATES,),
    ),
    Mutant(
        "a batch passes one of its producer that failed, while it waits at a stream",
        _GATE,
        "            each.fails = each.fails or each.pid == pid\n",
        "            pass\n",
        (_GATES,),
    ),
    Mutant(
        "all batches of a stream wait for the last Stream-Seq",
        _GATE,
        "return not is_plain or self._blocking > 0 or",
        "return not is_plain or self._blocking >= 0 or",
        (_GATES,),
    ),
    Mutant(
        "what was read for a batch is read again after the gate",
        "pidlease/engine/partition.py",
        "        again, give_up = partial(self.produce, waited, read)",
        "        again, give_up = partial(self.produce, waited, _NOTHING_READ)",
        (_GATES,),
    ),
    Mutant(
        "a close that was noted during the read of a stream's end is forgotten",
        _GATE,
        "                if doubts == self._doubts:\n                    self.closed = closed\n",
        "                if True:\n                    self.closed = closed\n",
        (_GATES,),
    ),
    Mutant(
        "a stream's closing mark counts as data",
        _GATE,
        "                return Closed(record.offset, record.offset)\n",
        "                return Closed(record.offset, record.offset + 1)\n",
        (_CLOSES,),
    ),
    Mutant(
        "a closed stream admits batches",
        _GATE,
        "            refusal = Refusal.CLOSED\n",
        "            refusal = None\n",
        (_CLOSES,),
    ),
    Mutant(
        "the last Stream-Seq is not read from the log",
        _GATE,
        "doubts, found = self._doubts, await self._stored_order()\n",
        'doubts, found = self._doubts, b""\n',
        (_KILL,),
    ),
    Mutant(
        "a stream without its first record exists",
        _CATALOG,
        "        if not stream.has_begun:\n",
        "        if False:\n",
        (_HALF,),
    ),
    Mutant(
        "a stream that cannot be read is removed",
        _CATALOG,
        "        self.partition.check_not_stopped()\n        return False\n",
        "        return False\n",
        ("tests/streams/test_streams.py::test_a_stream_that_cannot_be_read_is_kept",),
    ),
    Mutant(
        "a stream whose records were removed is removed at a start",
        _GATE,
        "        self.has_data = self._log.start_offset > 0  # or they were removed\n",
        "",
        ("tests/streams/test_streams.py::test_a_stream_without_records_is_kept",),
    ),
    Mutant(
        "a stream is read at a server that does not own it",
        _CATALOG,
        "        stream.partition.check_owned()\n",
        "",
        ("tests/kafka_backend/test_shared_settings.py",),
    ),
    Mutant(
        "a close does not wait for the appends before it",
        _GATE,
        "        if send.closing is not Closing.NO and self._in_flight() > 0:\n",
        "        if False:\n",
        ("tests/kafka_backend/test_streams_over_kafka.py",),
    ),
    Mutant(
        "the values of a repeated PUT are stored again",
        "proxy/http/streams/stream_routes.py",
        "    if not isinstance(stream.partition.log, ForwardingLog):\n",
        "    if stream:\n",
        ("tests/kafka_backend/test_streams_over_kafka.py",),
    ),
    Mutant(
        "a stream with forks is deleted",
        _CATALOG,
        "        if not self._forks[name]:\n",
        "        if name:\n",
        (_KILL,),
    ),
    Mutant(
        "deleted values of a stream are served from memory",
        _PAGES,
        "        if at < partition.log.start_offset:",
        "        if at < 0:",
        (f"{_SHARED}::test_deleted_values_are_not_served_from_memory",),
    ),
    Mutant(
        "a reader that leaves ends the read of others",
        _PAGES,
        "            read = await asyncio.shield(running.task)\n",
        "            read = await running.task\n",
        (f"{_SHARED}::test_a_reader_that_leaves_does_not_end_the_read_of_others",),
    ),
    Mutant(
        "a reader gets the end of a read that began before it came",
        _PAGES,
        " and running.began < reader.now):\n",
        " and running.began < 0.0):\n",
        (_HOLD_UP_STREAMS,),
    ),
    Mutant(
        "the values of a page before what cannot be read are lost",
        _PAGES,
        "                    if values:\n                        return",
        "                    if False:\n                        return",
        (f"{_SHARED}::test_values_before_what_cannot_be_read_are_a_page",),
    ),
    Mutant(
        "each reader of a stream reads the log",
        _PAGES,
        "            running = self._running.get(key)\n",
        "            running = None\n",
        (f"{_SHARED}::test_readers_at_the_end_share_one_read",),
    ),
    Mutant(
        "a damaged value is read if its batch has one record",
        "proxy/http/streams/single_values.py",
        "            or crc32c(view[at + CRC_FROM : stop]) != crc\n",
        "",
        ("tests/streams/test_single_values.py::test_a_damaged_value_is_left_to_the_decoder",),
    ),
    Mutant(
        "a malformed request is refused before those in front of it",
        "proxy/http/http_protocol.py",
        "        if not self.pipeline and (served in",
        "        if received is None or (served in",
        (_PIPELINED,),
    ),
    Mutant(
        "a half-closed connection is closed without its responses",
        "proxy/http/http_protocol.py",
        "        return not self.transport.is_closing()\n",
        "        return False\n",
        (_HALF_CLOSED,),
    ),
    Mutant(
        "a read waits on for a half-closed connection",
        "proxy/http/http_protocol.py",
        "            self._served.message_event.set()",
        "            pass",
        (_HALF_CLOSED,),
    ),
    Mutant(
        "an append with an invalid head is submitted after others",
        "proxy/http/http_protocol.py",
        "            if app is not self.config.loaded_app or not self._submit(cycle):\n",
        "            if not self._submit(cycle):\n",
        (_INVALID_HEADS,),
    ),
    Mutant(
        "a body that has not arrived at a stop fails with a traceback",
        "proxy/http/request_memory.py",
        "            raise BodyAtStopError from None",
        "            raise",
        ("tests/http_api/test_slow_requests.py",),
    ),
    Mutant(
        "hardly any appends of a connection are submitted together",
        "proxy/http/http_protocol.py",
        "_SUBMITTED_MAX: Final = 64",
        "_SUBMITTED_MAX: Final = 1",
        ("tests/http_api/test_immediate_appends.py",),
    ),
    Mutant(
        "an append that waits is never submitted again",
        "pidlease/engine/early_appends.py",
        "            self._submit(each)\n",
        "            self._give_up(each)\n",
        (_ORDER,),
    ),
)

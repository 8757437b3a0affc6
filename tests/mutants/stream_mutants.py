"""Broken streams: closes, Stream-Seq, half creations, kept sources, early appends."""

from typing import Final

from tests.mutants.mutant import Mutant

_GATE: Final = "pidlease/engine/stream_gate.py"
_CATALOG: Final = "proxy/http/streams/stream_catalog.py"
_STREAMS: Final = "tests/streams/test_streams.py"
_CLOSES: Final = f"{_STREAMS}::test_a_close_outlives_a_kill"
_KILL: Final = f"{_STREAMS}::test_what_is_acknowledged_outlives_a_kill"
_HALF: Final = f"{_STREAMS}::test_a_stream_without_its_first_record_does_not_exist"
_ORDER: Final = "tests/streams/test_reordering.py::test_requests_in_any_order_are_stored_in_order"

STREAMS: Final = (
    Mutant(
        "a stream's close is not read from the log",
        _GATE,
        "                self.closed = await self._last_close()\n",
        "                pass\n",
        (_CLOSES,),
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
        "                found = await self._stored_order()\n",
        '                found = b""\n',
        (_KILL,),
    ),
    Mutant(
        "a stream without its first record exists",
        _CATALOG,
        "        if stream.config.initial and stream.partition.readable_end == 0:\n",
        "        if stream.config.initial and stream.partition.readable_end < 0:\n",
        (_HALF,),
    ),
    Mutant(
        "a stream with forks is deleted",
        _CATALOG,
        "        if not self._forks[name]:\n",
        "        if name:\n",
        (_KILL,),
    ),
    Mutant(
        "an append that waits is never submitted again",
        "pidlease/engine/early_appends.py",
        "            self._submit(key, each)\n",
        "            self._give_up(key, each)\n",
        (_ORDER,),
    ),
)

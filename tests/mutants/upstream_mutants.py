"""What must not go unnoticed in front of Kafka."""

from typing import Final

from tests.mutants.mutant import Mutant

_LANES: Final = "pidlease/engine/lanes.py"
_FRONTIER: Final = "pidlease/engine/frontier.py"
_WRITING: Final = "pidlease/engine/writing.py"
_SIM: Final = "tests/unit/engine/test_lanes.py"
_JOINED: Final = "tests/unit/storage/test_joined.py"

UPSTREAM: Final = (
    Mutant(
        "the first batch of a producer does not go alone",
        _LANES,
        "room = BATCHES_KEPT if known else 1",
        "room = BATCHES_KEPT",
        (_SIM,),
    ),
    Mutant(
        "Kafka is thought to know for ever who writes old records",
        _LANES,
        "min(header.max_timestamp, self._clock_ms())",
        "self._clock_ms()",
        (_SIM,),
    ),
    Mutant(
        "a batch of unknown outcome does not hold back the vector",
        _FRONTIER,
        "        self._unknown[producer] = (min(floor, before), now_ms)\n",
        "        self._unknown[producer] = (self.end, now_ms)\n",
        (_SIM,),
    ),
    Mutant(
        "what a life before sent is not expected any more",
        _FRONTIER,
        "{_ANYBODY: (end, now_ms)}",
        "{}",
        (_SIM,),
    ),
    Mutant(
        "the log is not read before a producer in doubt is judged",
        _LANES,
        "        return reading if doubts else None\n",
        "        return None\n",
        (_SIM,),
    ),
    Mutant(
        "what is read again is applied twice",
        "pidlease/engine/known.py",
        "                if state is None or offset_of(rules, state) < offset:\n",
        "                if state is None or offset_of(rules, state) != offset:\n",
        (_SIM,),
    ),
    Mutant(
        "batches behind one that failed are still waited for",
        _LANES,
        "        lane.flying.clear()\n",
        "        lane.flying.rotate(0)\n",
        (_SIM,),
    ),
    Mutant(
        "a batch without a PID puts an end to doubts",
        _LANES,
        "        if pid:\n            self._frontier.settled(pid)\n",
        "        self._frontier.settled(pid)\n        if pid:\n",
        (_SIM,),
    ),
    Mutant(
        "the writer's marker is not waited for",
        "pidlease/engine/taking.py",
        "            if marked:\n",
        "            if end >= 0:\n",
        (_SIM,),
    ),
    Mutant(
        "the writer goes on after an unknown outcome",
        _WRITING,
        "        self.writer = None\n        if not flights and not self._waiting:\n",
        "        if not flights and not self._waiting:\n",
        (_SIM,),
    ),
    Mutant(
        "sends that were joined are read as one",
        "pidlease/storage/joined.py",
        "identity._replace(records=records)",
        "identity._replace(records=0)",
        (_JOINED,),
    ),
    Mutant(
        "what waits for the log passes one that failed",
        "pidlease/engine/rereading.py",
        "            self._failed.add(producer)\n",
        "            self._failed.discard(producer)\n",
        (_SIM,),
    ),
    Mutant(
        "what is known here is all there is",
        "pidlease/engine/partition.py",
        "            if verdict.kind in _HEARSAY and again is not None:\n",
        "            if verdict.kind in _HEARSAY and again is None:\n",
        (_SIM,),
    ),
)

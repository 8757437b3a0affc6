"""What must not go unnoticed in front of Kafka."""

from typing import Final

from tests.mutants.mutant import Mutant

_LANES: Final = "pidlease/engine/lanes.py"
_FRONTIER: Final = "pidlease/engine/frontier.py"
_PARTITION: Final = "pidlease/engine/partition.py"
_SIM: Final = "tests/unit/engine/test_lanes.py"

UPSTREAM: Final = (
    Mutant(
        "the first batch of a producer does not go alone",
        _LANES,
        "if not pid or self._known_until_ms.get(pid, 0) > now_ms else 1",
        "if now_ms else 1",
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
        _PARTITION,
        "        if reading is None or not (\n",
        "        if reading is not None or not (\n",
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
        "what waits for the log is passed by",
        _PARTITION,
        "            reading.holds(pid)  # what came before it waits, too\n",
        "            False\n",
        (_SIM,),
    ),
)

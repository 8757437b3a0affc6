"""The points between two steps at which a server is to die: one life for each.

They follow one another in one data directory, so each life also starts on what the one before
has left. In the normal run a server dies behind each step, and before the first of its kind; in
the soak before and behind each.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

#: Partitions of the topic that the clients write to. A start does some things for each of them.
PARTITIONS: Final = 3
TOPIC: Final = "load"
#: What stands for the topic that is made in this life, and in no other.
NEW: Final = "NEW"


@dataclass(frozen=True, slots=True)
class Point:
    """A fault, and what makes the server come by.

    Attributes:
        fault: as `pidlease.storage.file_faults` reads it.
        trigger: start, traffic, lease, name, topic, defaults, commit or stop.
    """

    fault: str
    trigger: str

    @property
    def step(self) -> tuple[str, str]:
        """Operation and pattern."""
        words = self.fault.split()
        return words[2], words[3]


#: TRIGGER OPERATION PATTERN COUNT MARKS, in the order in which one directory comes by them.
#: COUNT: a number; `each`: once for each partition at the start, then wherever it happens next;
#: `+` behind it: up to ten more. MARKS: `!` die before it, too; `~` a write that is also torn;
#: `s` in the soak only: making the empty directories; `d` where what is durable matters: not with
#: fsync=never, which leaves it to the system.
_STEPS: Final = """
start make_folder */data 1 !s
start open */data/.aside* 1 s
start truncate */data/.aside* 1 s
start write */data/.aside* 1 ~s
start fsync */data/.aside* 1 s
start rename */meta.json 1 s
start make_folder */topics 1 s
start fsync_folder */data 1 s
start make_folder */snapshots 1 s
start fsync_folder */snapshots 1 s
start make_folder */sequence 1
start open */sequence/.aside* 1
start truncate */sequence/.aside* 1
start write */sequence/.aside* 1 ~
start fsync */sequence/.aside* 1
start rename */sequence/blocks 1
start rename */sequence/names 1
start fsync_folder */sequence 1
start make_folder */groups 1 s
start open */groups/.aside* 1 s
start truncate */groups/.aside* 1 s
start write */groups/.aside* 1 ~s
start fsync */groups/.aside* 1 s
start rename */groups/offsets 1
start fsync_folder */groups 1 s
start fsync */groups/offsets 1
start truncate */sequence/blocks 1 !
start write */sequence/blocks 1 ~
start fsync */sequence/blocks 1
topic make_folder */logs 1
traffic make_folder */logs/load-? 2
start fsync_folder */logs 1
topic make_folder */logs/NEW-0 1
topic open */logs/NEW-0/*.index 1
topic open */logs/NEW-0/*.timeindex 1
topic open */logs/NEW-0/*.log 1
topic truncate */logs/NEW-0/*.log 1
topic fsync_folder */logs/NEW-0 1
topic open */logs/NEW-?/.aside* 1 !
topic truncate */logs/NEW-?/.aside* 1
topic write */logs/NEW-?/.aside* 1 ~
topic fsync */logs/NEW-?/.aside* 1
topic rename */logs/NEW-?/topic 1
topic open */topics/.aside* 1 !
topic truncate */topics/.aside* 1
topic write */topics/.aside* 1 ~
topic fsync */topics/.aside* 1
topic rename */topics/*.json 1
topic fsync_folder */topics 2
defaults open */topics/.aside* 1
defaults truncate */topics/.aside* 1
defaults write */topics/.aside* 1 ~
defaults fsync */topics/.aside* 1
defaults rename */topics/defaults 1 !
defaults fsync_folder */topics 2
name write */sequence/names 1 !~
name fsync */sequence/names 1
start write */sequence/names 1 ~
start fsync */sequence/names 1
lease truncate */sequence/blocks 2 !
lease write */sequence/blocks 2 ~
lease fsync */sequence/blocks 2
traffic write */load-?/*.log each+ !~
start truncate */load-?/*.log 1
traffic fsync */load-?/*.log each+ !
start write */load-?/*.log 1 ~
start fsync */load-?/*.log 1
start open */durable 1
start write */durable 1
traffic open */durable 1
traffic write */durable each+ ~
traffic write */load-?/*.index 1+ ~
start truncate */load-?/*.index 1
traffic write */load-?/*.timeindex 1+ ~
start truncate */load-?/*.timeindex 1
traffic fsync */load-?/*.index 1 !
traffic fsync */load-?/*.timeindex 1
traffic open */load-?/*.index each
traffic open */load-?/*.timeindex each
traffic open */load-?/*.log 1
traffic truncate */load-?/*.log 1
traffic fsync_folder */logs/load-? each
commit write */groups/offsets 2+ !~
start write */groups/offsets 1 ~
commit truncate */groups/offsets 1
commit fsync */groups/offsets 2+ d
stop write */groups/offsets 2 ~
stop fsync */groups/offsets 2 s
traffic make_folder */snapshots/.aside* 1 !
traffic open */.aside*/producers.parquet 1
traffic write */.aside*/producers.parquet 3+ ~
start remove */.aside*/producers.parquet 1
start remove */.aside*[0-9] 1
traffic fsync */.aside*/producers.parquet 1
traffic open */.aside*/leases.parquet 1
traffic write */.aside*/leases.parquet 1+ ~
traffic fsync */.aside*/leases.parquet 1
traffic open */.aside*/manifest.json 1
traffic write */.aside*/manifest.json 1 ~
traffic fsync */.aside*/manifest.json 1
traffic fsync_folder */snapshots/.aside* 1
traffic rename */snapshots/snapshot-* 1
traffic fsync_folder */snapshots 2
traffic remove */snapshot-*/manifest.json 1
traffic fsync_folder */snapshots/snapshot-* 1
traffic remove */snapshot-*/leases.parquet 1
traffic remove */snapshot-*/producers.parquet 1
traffic remove */snapshot-??????000??? 1
stop open */data/.aside* 1
stop truncate */data/.aside* 1
stop write */data/.aside* 1
stop fsync */data/.aside* 1
stop rename */clean-stop 1
start remove */clean-stop 1
"""


def points(random: Random, *, all_sides: bool, durable: bool = True) -> list[Point]:
    """All points, in the order in which one directory comes by them."""
    found = []
    for line in _STEPS.strip().splitlines():
        trigger, operation, pattern, number, marks = (*line.split(), "")[:5]
        if ("s" in marks and not all_sides) or ("d" in marks and not durable):
            continue
        sides = ["kill before"] if all_sides or "!" in marks else []
        sides.append("kill after")
        if "~" in marks:
            sides.append("tear before")
        for side in sides:
            fault = f"{side} {operation} {pattern} {_count(number, random)}"
            found.append(Point(fault, trigger))
    return found


def _count(text: str, random: Random) -> int:
    more = random.randrange(10) if text.endswith("+") else 0
    text = text.rstrip("+")
    return (PARTITIONS + 1 if text == "each" else int(text)) + more

"""Broken answers of a partition whose records are damaged, and broken cuts of one."""

from typing import Final

from tests.mutants.mutant import CACHED_READS, RECOVERY, Mutant

_CUT: Final = "pidlease/repair/cut.py"
_STOPPED: Final = "tests/http_api/test_damaged.py"
_LOG_DAMAGE: Final = "tests/unit/log/test_embedded_damage.py"
_CRASHES: Final = "tests/unit/engine/test_repair_crashes.py"
_SNAPSHOTS: Final = f"{_CRASHES}::test_a_cut_keeps_what_snapshots_know_of_other_partitions"

DAMAGE: Final = (
    Mutant(
        "a fetch at the damage looks like the end of the log",
        "proxy/kafka/fetch_poll.py",
        "        if row.offset >= end and partition.incomplete:\n",
        "        if row.offset < 0:\n",
        (_STOPPED,),
    ),
    Mutant(
        "the damage is told as the end of the log",
        "proxy/kafka/list_offsets.py",
        "    if timestamp == _LATEST:\n        if partition.incomplete:\n",
        "    if timestamp == _LATEST:\n        if partition.gone:\n",
        (_STOPPED,),
    ),
    Mutant(
        "a time that lies in the damage is told as not there",
        "proxy/kafka/list_offsets.py",
        "    if found is None and partition.incomplete:\n",
        "    if found is None and partition.gone:\n",
        (_STOPPED,),
    ),
    Mutant(
        "a name goes on at the damage",
        "pidlease/engine/lease_service.py",
        "            partition.check_not_stopped()\n",
        "            pass\n",
        (_STOPPED,),
    ),
    Mutant(
        "an http read at the damage is an empty page",
        "proxy/http/record_pages.py",
        "            if partition.incomplete:\n                raise partition.stopped_error()\n",
        "",
        (_STOPPED,),
    ),
    Mutant(
        "damage in an older segment does not end the log",
        "pidlease/log/segments/embedded_log.py",
        "            self.view = self.view.up_to(offset)\n",
        "",
        (CACHED_READS,),
    ),
    Mutant(
        "a read at the end of a segment that was cut fails as no damage",
        "pidlease/log/segments/log_view.py",
        "                    if position >= end:\n",
        "                    if position < 0:\n",
        (_LOG_DAMAGE,),
    ),
    Mutant(
        "a read of a batch that was cut returns nothing",
        "pidlease/log/segments/log_view.py",
        "                    if len(data) < size:\n                        raise",
        "                    if size < 0:\n                        raise",
        (_LOG_DAMAGE,),
    ),
    Mutant(
        "a bad sector takes the batches before it along",
        "pidlease/log/segments/scan.py",
        "            ahead = 0  # the",
        "            raise BrokenBatchError(position, error.strerror) from error  # the",
        (_LOG_DAMAGE,),
    ),
    Mutant(
        "a bad sector in a sealed segment ends the start",
        "pidlease/engine/recovery.py",
        "not isinstance(error, LogError) and not is_unreadable(error)",
        "not isinstance(error, LogError)",
        (RECOVERY,),
    ),
    Mutant(
        "a log without segments begins anew",
        "pidlease/log/segments/embedded_log.py",
        "            self._check_complete(recovery_offset)\n",
        "            if segments:\n                self._check_complete(recovery_offset)\n",
        (_LOG_DAMAGE, RECOVERY),
    ),
    Mutant(
        "a log may end before a snapshot",
        "pidlease/log/segments/embedded_log.py",
        "            self._check_complete(recovery_offset)\n",
        "            self._check_complete(durable)\n",
        (_LOG_DAMAGE, RECOVERY),
    ),
    Mutant(
        "a partition without segments is not repaired",
        "pidlease/repair/damage.py",
        "if segments else nothing\n",
        "if segments else nothing._replace(end_offset=2**62)\n",
        (_CRASHES,),
    ),
    Mutant(
        "what was acknowledged beyond the damage is forgotten",
        "pidlease/log/segments/embedded_log.py",
        "            self._promised_end = max(recovery_offset, self._deleted_to, end + 1)\n",
        "",
        (_STOPPED,),
    ),
    Mutant(
        "a cut keeps nothing",
        _CUT,
        "    for path in parts_of(damaged.folder, view):\n        _copy(",
        "    for path in parts_of(damaged.folder, view)[:0]:\n        _copy(",
        (_CRASHES,),
    ),
    Mutant(
        "what a cut keeps is not fsynced",
        _CUT,
        "                position += len(chunk)\n            written.fsync()\n",
        "                position += len(chunk)\n",
        (_CRASHES,),
    ),
    Mutant(
        "a cut leaves the durable mark",
        _CUT,
        "    if DurableMark(files, damaged.folder).read() > view.end_offset:\n",
        "    if view.end_offset < 0:\n",
        (_CRASHES,),
    ),
    Mutant(
        "a cut loses what snapshots know of other partitions",
        _CUT,
        "        store.write(now_ms, rows, newest.leases)\n",
        "",
        (_SNAPSHOTS,),
    ),
    Mutant(
        "a cut leaves the damaged bytes",
        _CUT,
        "        active.log.truncate(view.last_size)\n",
        "",
        (_CRASHES,),
    ),
)

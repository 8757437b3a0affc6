"""Broken copies: what is saved when, what a batch becomes, what a comparison sees."""

from typing import Final

from tests.mutants.mutant import Mutant

_SAVING: Final = "pidlease/copier/checkpoint_commits.py"
_RESUMING: Final = "pidlease/copier/resume_position.py"
_BATCHES: Final = "pidlease/copier/copied_batch.py"
_TRANSLATING: Final = "pidlease/copier/batch_translator.py"
_VERIFYING: Final = "pidlease/copier/comparison.py"
_COPYING: Final = "pidlease/copier/partition_copy.py"
_CHECKPOINT: Final = "pidlease/copier/copy_checkpoint.py"

_SAVED: Final = ("tests/copier/test_saving.py",)
_MADE: Final = ("tests/copier/test_batches.py",)
_SEEN: Final = ("tests/copier/test_verifying.py",)
_END: Final = "self._source.offset(self._place, self._settings.start, READ_COMMITTED)"
_STARTED: Final = ("tests/copier/test_start_latest.py",)

COPIER: Final = (
    Mutant(
        "a checkpoint comes in behind the next PID's",
        _SAVING,
        """                async with self._lock:
                    gone = await self._commit({place: checkpoint})
""",
        "                gone = await self._commit({place: checkpoint})\n",
        _SAVED,
    ),
    Mutant(
        "a PID that is replaced is kept as saved",
        _SAVING,
        "                if is_saved and each.done is not None and each.done.pid == done.pid:\n",
        "                if is_saved:\n",
        _SAVED,
    ),
    Mutant(
        "a checkpoint that the group did not store counts as saved",
        _SAVING,
        "                if not gone:\n",
        "                if True:\n",
        _SAVED,
    ),
    Mutant(
        "a topic that was made anew is read on",
        "pidlease/copier/source_fetcher.py",
        "if is_other_topic(reader.topic_id, topic_id_of(self._cluster.view, place.topic)):\n",
        "if False:\n",
        ("tests/copier/test_made_anew.py",),
    ),
    Mutant(
        "partitions keep their places while they have records",
        "pidlease/copier/source_fetcher.py",
        "                if chunk.data:  # the next fetch begins with those that got nothing\n",
        "                if True:\n",
        ("tests/copier/test_source_fetcher.py",),
    ),
    Mutant(
        "what waits is saved as it was",
        _SAVING,
        """            async with self._lock:
                # Read them under the lock: while this call waited, a PID may have been replaced.
                due = {
                    each: each.done
                    for each in new[first : first + _COMMIT_MAX]
                    if each.done is not None
                }
""",
        """            due = {
                each: each.done
                for each in new[first : first + _COMMIT_MAX]
                if each.done is not None
            }
            async with self._lock:
""",
        _SAVED,
    ),
    Mutant(
        "who goes on is fenced by what was sent before",
        _RESUMING,
        "    return lease.generation if lease.sequence_number else checkpoint.generation + 1\n",
        "    return lease.generation\n",
        _SAVED,
    ),
    Mutant(
        "the source's own header stays",
        _BATCHES,
        "        if key != HEADER_KEY:\n",
        "        if key:\n",
        _MADE,
    ),
    Mutant(
        "aborted transactions are copied",
        _TRANSLATING,
        "_TRANSACTIONAL_BIT and header.producer_id in aborted:\n",
        "0:\n",
        _MADE,
    ),
    Mutant(
        "an aborted transaction goes on for ever",
        _TRANSLATING,
        "                    aborted.discard(header.producer_id)\n",
        "                    pass\n",
        _MADE,
    ),
    Mutant(
        "doubles at a new PID are taken for deleted",
        _VERIFYING,
        "    if sent.first < first and not begun:\n",
        "    if sent.first < first:\n",
        _SEEN,
    ),
    Mutant(
        "records that the source has compacted are different",
        _VERIFYING,
        "        if left > 0 and row not in contents:\n",
        "        if False:\n",
        _SEEN,
    ),
    Mutant(
        "a double is taken for a compacted record",
        _VERIFYING,
        "        if left > 0 and row not in contents:\n",
        "        if row not in contents or left > 0:\n",
        _SEEN,
    ),
    Mutant(
        "a comparison begins at the end",
        _VERIFYING,
        "    if settings.start == LATEST:\n",
        "    if False:\n",
        _SEEN,
    ),
    Mutant(
        "a partition that is new begins at its end",
        _RESUMING,
        "        if self._settings.start == LATEST and await start.is_new(self._place):\n",
        "        if False:\n",
        _STARTED,
    ),
    Mutant(
        "a copy begins before each partition has a checkpoint",
        _COPYING,
        "            await self._hub.copy_start.wait()\n",
        "",
        _STARTED,
    ),
    Mutant(
        "that a copy has begun is saved after it copies",
        _COPYING,
        """            checkpoint = checkpoint._replace(starting=False)
            await self._hub.save(self.place, checkpoint)
""",
        "            checkpoint = checkpoint._replace(starting=False)\n",
        _STARTED,
    ),
    Mutant(
        "an end that is read after the copy began counts",
        _RESUMING,
        f"        offset = await {_END}\n"
        "        # In this order: an end that counts was read before the copy began.\n"
        "        if self._settings.start == LATEST and await start.is_new(self._place):\n",
        "        is_new = self._settings.start == LATEST and await start.is_new(self._place)\n"
        f"        offset = await {_END}\n"
        "        if is_new:\n",
        _STARTED,
    ),
    Mutant(
        "a damaged checkpoint is believed",
        _CHECKPOINT,
        '    if crc != _crc(offset, {"pidlease": version, **fields}):\n',
        "    if False:\n",
        ("tests/copier/test_checkpoint.py",),
    ),
)

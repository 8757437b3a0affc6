"""Broken storage and coordination: what is durable when, what is found again, what is checked."""

from typing import Final

from tests.mutants.mutant import (
    BATCH,
    CACHED_READS,
    CHANGES,
    DAMAGE,
    FAULTS,
    FETCH,
    FLUSH,
    FOLDER,
    LOG,
    OPEN_LOGS,
    SEQUENCE,
    SIM,
    SNAPSHOTS,
    TOPICS,
    Mutant,
)

_SEGMENT: Final = "pidlease/log/segments/segment.py"
_LOG_VIEW: Final = "pidlease/log/segments/log_view.py"
_SNAPSHOT_TABLES: Final = "pidlease/storage/snapshot_tables.py"
_EMBEDDED: Final = "pidlease/log/segments/embedded_log.py"
_SNAPSHOTS: Final = "pidlease/storage/snapshots.py"
_SEQUENCE: Final = "pidlease/coordination/file/file_sequence.py"
_FILES: Final = "pidlease/storage/files.py"

STORAGE: Final = (
    Mutant(
        "fsync skipped in the append path",
        _SEGMENT,
        "        if fsync:\n            self.log.fsync()",
        "        if fsync:\n            pass",
        (FAULTS,),
    ),
    Mutant(
        "fsync skipped in the append path (by whole lives)",
        _SEGMENT,
        "        if fsync:\n            self.log.fsync()",
        "        if fsync:\n            pass",
        (SIM,),
    ),
    Mutant(
        "fsync skipped in snapshots: tables",
        "pidlease/storage/snapshot_files.py",
        "        file.fsync()\n    finally:\n        file.close()\n    return rows",
        "    finally:\n        file.close()\n    return rows",
        (SNAPSHOTS,),
    ),
    Mutant(
        "packed states with another number of batches are packed alike",
        _SNAPSHOT_TABLES,
        "{name: values.take(_column(rows)) for name, values in column.items()}",
        "column",
        (SNAPSHOTS,),
    ),
    Mutant(
        "numbers of a snapshot that do not fit are cut",
        _SNAPSHOT_TABLES,
        "        return values.cast(kind)\n",
        "        return values.cast(kind, safe=False)\n",
        (SNAPSHOTS,),
    ),
    Mutant(
        "the batches of a packed state are stored in its order",
        _SNAPSHOT_TABLES,
        "begins[::-1])",
        "begins)",
        (SNAPSHOTS,),
    ),
    Mutant(
        "fsync skipped in snapshots: manifest",
        _SNAPSHOTS,
        "            file.write_at([content], 0)\n            file.fsync()",
        "            file.write_at([content], 0)",
        (SNAPSHOTS,),
    ),
    Mutant(
        "fsync skipped in the PID sequence",
        _SEQUENCE,
        "            file.write_at([line], self._length)\n            file.fsync()",
        "            file.write_at([line], self._length)",
        (SEQUENCE,),
    ),
    Mutant(
        "PID block not recorded before use",
        _SEQUENCE,
        "                self._append(_line(block))",
        "                pass",
        (SEQUENCE,),
    ),
    Mutant(
        "damaged end of the PID sequence not skipped",
        _SEQUENCE,
        "            self._next += skipped * BLOCK_SIZE",
        "            self._next += 0",
        (SEQUENCE,),
    ),
    Mutant(
        "torn tail not cut",
        _SEGMENT,
        "                raise DamagedLogError(path, error.position, str(error)) from None\n"
        "            self.cut()",
        "                raise DamagedLogError(path, error.position, str(error)) from None",
        (DAMAGE, SIM),
    ),
    Mutant(
        "failed append not cut",
        _EMBEDDED,
        "        try:\n            self._active.cut()\n",
        "        try:\n            pass\n",
        (FAULTS,),
    ),
    Mutant(
        "tail found at a start not fsynced",
        _SEGMENT,
        "so it must be on the disk.\n            self.log.fsync()",
        "\n            pass",
        (FAULTS,),
    ),
    Mutant(
        "roll without the sealing fsync",
        _SEGMENT,
        "        self.log.fsync()\n        self._write_index(TIME_SUFFIX",
        "        self._write_index(TIME_SUFFIX",
        (FAULTS, LOG),
    ),
    Mutant(
        "folder not fsynced: new segment",
        _SEGMENT,
        "        self._log.truncate(0)\n        self.names.files.fsync_folder(self.names.folder)",
        "        self._log.truncate(0)",
        (FAULTS, SIM),
    ),
    Mutant(
        "folder not fsynced: file written aside",
        _FILES,
        "        raise\n    files.fsync_folder(path.parent)",
        "        raise",
        (TOPICS,),
    ),
    Mutant(
        "folder not fsynced: snapshot",
        _SNAPSHOTS,
        "            raise\n        self._files.fsync_folder(self._folder)\n",
        "            raise\n",
        (SNAPSHOTS,),
    ),
    Mutant(
        "file written aside not fsynced",
        _FILES,
        "                position += len(chunk)\n            opened.fsync()",
        "                position += len(chunk)",
        (TOPICS, FOLDER),
    ),
    Mutant(
        "retention passes its limit",
        "pidlease/log/segments/retention.py",
        "        if end > limit_offset:\n            return\n",
        "",
        (LOG,),
    ),
    Mutant(
        "a reader that continues gets what is not acknowledged",
        _LOG_VIEW,
        "        size = min(max(max_bytes, HEADER_BYTES), end - position)\n",
        "        size = max(max_bytes, HEADER_BYTES)\n",
        (CACHED_READS,),
    ),
    Mutant(
        "a batch that is longer than the log is read",
        _LOG_VIEW,
        "                if size > end - position:\n",
        "                if size < 0:\n",
        (CACHED_READS,),
    ),
    Mutant(
        "a read on the event loop counts any number of batches",
        _LOG_VIEW,
        "        if whole.batches == _CACHED_BATCHES_MAX:\n",
        "        if whole.batches < 0:\n",
        (CACHED_READS,),
    ),
    Mutant(
        "any number of segments stays open for readers",
        "pidlease/log/segments/open_segments.py",
        "len(self._files) >= self._limit or",
        "",
        (CACHED_READS,),
    ),
    Mutant(
        "readers at one offset are known once",
        _LOG_VIEW,
        "position + whole.size, readers + 1\n",
        "position + whole.size, 1\n",
        (CACHED_READS,),
    ),
    Mutant(
        "a fetch sends a part of a batch",
        "proxy/kafka/fetch_poll.py",
        "memoryview(data)[: whole.size]",
        "memoryview(data)",
        (FETCH,),
    ),
    Mutant(
        "a fetch sends what is not applied to the producers",
        "proxy/kafka/fetch_poll.py",
        "            if whole.end_offset > partition.readable_end:\n",
        "            if whole.end_offset < 0:\n",
        (FETCH,),
    ),
    Mutant(
        "CRC not checked",
        "pidlease/kafka/records/record_batch.py",
        "    if found != header.crc:",
        "    if found < 0:",
        (BATCH,),
    ),
    Mutant(
        "checksums of a snapshot not checked",
        _SNAPSHOTS,
        "        if (len(content), crc32c(content)) != manifest.checksums.get(path.name):",
        "        if not content:",
        (SNAPSHOTS,),
    ),
    Mutant(
        "deleted records come back",
        _EMBEDDED,
        "            write_log_start(self._files, self._folder, before)\n",
        "",
        (CHANGES,),
    ),
    Mutant(
        "records deleted before they are durable",
        _EMBEDDED,
        "                # A power cut may not leave a log that ends before it starts.\n"
        "                self._flush_locked()\n",
        "                pass\n",
        (CHANGES,),
    ),
    Mutant(
        "a deleted topic's logs are not remembered",
        "pidlease/storage/topics/topic_store.py",
        "        self._files.rename(path, doomed)\n",
        "        self._files.remove(path)\n",
        (CHANGES,),
    ),
    Mutant(
        "a flush beside appends holds them up",
        _EMBEDDED,
        "        error: OSError | None = None\n        try:\n            log.fsync()\n",
        "        error: OSError | None = None\n        try:\n            with self._lock:\n"
        "                log.fsync()\n",
        (FLUSH,),
    ),
    Mutant(
        "a failed flush beside appends is not told",
        _EMBEDDED,
        "                    self._fsync_failed(error)\n                elif",
        "                    pass\n                elif",
        (FLUSH,),
    ),
    Mutant(
        "a flush does not hear of another fsync's failure",
        _EMBEDDED,
        "                in_doubt = self._in_doubt\n",
        "                in_doubt = error is not None\n",
        (FLUSH,),
    ),
    Mutant(
        "a flush notes as durable what another fsync has lost",
        _EMBEDDED,
        "                elif not self._in_doubt:\n",
        "                else:\n",
        (FLUSH,),
    ),
    Mutant(
        "a failed cut that may have lost pages is not told",
        _EMBEDDED,
        "                self._fsync_failed(error)  # it is the first",
        "                pass  # it is the first",
        ("tests/unit/log/test_inline_appends.py",),
    ),
    Mutant(
        "a topic made again forgets that it is one",
        "pidlease/engine/topics/topic_table.py",
        "        self._note_deleted(name)\n",
        "",
        (CHANGES,),
    ),
    Mutant(
        "files let go of without their records",
        _EMBEDDED,
        "                # The kernel reports a failed write only to open files; so fsync before"
        " closing.\n"
        "                self._flush_locked()\n",
        "                pass\n",
        (OPEN_LOGS,),
    ),
)

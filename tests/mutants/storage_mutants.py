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
    LOG_TOPICS,
    OPEN_LOGS,
    SEQUENCE,
    SIM,
    SNAPSHOTS,
    TOPICS,
    Mutant,
)

_LOG_TOPICS: Final = "pidlease/log/segments/log_topics.py"
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
        "an empty file of lines counts as a new one",
        "pidlease/storage/checked_lines.py",
        "    if not begin.startswith(header):\n",
        "    if begin and not begin.startswith(header):\n",
        (SEQUENCE,),
    ),
    Mutant(
        "a file that was removed is not missed",
        "pidlease/log/segments/data_directory.py",
        "            self._check_kept()\n",
        "",
        (FOLDER,),
    ),
    Mutant(
        "a new topic takes the log that is there",
        "pidlease/log/segments/data_directory.py",
        "        check_no_logs(self._files, logs, topic, numbers)\n",
        "",
        (LOG_TOPICS,),
    ),
    Mutant(
        "a topic's definition is stored before its logs are made",
        "pidlease/log/segments/data_directory.py",
        "            make_logs(self._files, logs, topic, numbers)\n"
        "            self.save_topic(topic)\n",
        "            self.save_topic(topic)\n"
        "            make_logs(self._files, logs, topic, numbers)\n",
        (LOG_TOPICS,),
    ),
    Mutant(
        "a log of another topic id is served",
        _LOG_TOPICS,
        "    if copy.topic_id == topic.topic_id:\n",
        "    if copy.name == topic.name:\n",
        (LOG_TOPICS,),
    ),
    Mutant(
        "the copy says that a log is there before it is",
        _LOG_TOPICS,
        "        with closing(ActiveSegment(SegmentFiles(files, folder, 0))) as segment:\n"
        "            segment.create()\n"
        "        write_copy(files, folder, topic)\n",
        "        write_copy(files, folder, topic)\n"
        "        with closing(ActiveSegment(SegmentFiles(files, folder, 0))) as segment:\n"
        "            segment.create()\n",
        (LOG_TOPICS,),
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
        "            rewrite.finish()\n            self.log.fsync()",
        "            rewrite.finish()",
        (FAULTS,),
    ),
    Mutant(
        "tail found at a start fsynced, but not written again",
        _SEGMENT,
        "                    rewrite.add(batch)\n                self._index(",
        "                    pass\n                self._index(",
        (FAULTS,),
    ),
    Mutant(
        "a sealed segment whose flush failed counts as durable",
        _EMBEDDED,
        "            self._rewrite_sealed(recovery_offset)\n",
        "            pass\n",
        (FAULTS,),
    ),
    Mutant(
        "the mark covers what a flush may still report as lost",
        _EMBEDDED,
        "        if self._flushing is None:\n            self._mark.write(",
        "        if True:\n            self._mark.write(",
        ("tests/unit/log/test_log_edges.py",),
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
        "            self._files.fsync_folder(self._folder)\n        except OSError:\n",
        "            pass\n        except OSError:\n",
        (SNAPSHOTS,),
    ),
    Mutant(
        "a snapshot that may not be durable stays",
        _SNAPSHOTS,
        "                self.remove(number)\n",
        "                pass\n",
        ("tests/unit/engine/test_recovery.py",),
    ),
    Mutant(
        "what is read from a file of checked lines counts as durable",
        "pidlease/storage/checked_lines.py",
        "                self._files.fsync_folder(self._path.parent)\n",
        "                pass\n",
        ("tests/unit/coordination/test_file_writer_ids.py",),
    ),
    Mutant(
        "what is read from the file of names counts as durable",
        "pidlease/coordination/file/file_names.py",
        "self._length - len(last))\n                file.fsync()\n",
        "self._length - len(last))\n",
        ("tests/unit/engine/test_named_leases.py",),
    ),
    Mutant(
        "the last name found at a start is fsynced, but not written again",
        "pidlease/coordination/file/file_names.py",
        "                file.write_at([last], self._length - len(last))\n",
        "",
        ("tests/unit/coordination/test_file_names.py",),
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
        " or len(self._files) >= self._limit:",
        ":",
        (CACHED_READS,),
    ),
    Mutant(
        "segments are kept for readers after the close",
        "pidlease/log/segments/open_segments.py",
        "if self._closed or len(",
        "if len(",
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

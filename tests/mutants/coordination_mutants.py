"""What must not go unnoticed where the coordinator is a journal of rows, in Kafka."""

from typing import Final

from tests.mutants.mutant import Mutant

_JOURNAL: Final = "pidlease/log/kafka/kafka_journal.py"
_SHARED: Final = "pidlease/log/kafka/kafka_shared_journal.py"
_SEQUENCE: Final = "pidlease/coordination/journal/journal_sequence.py"
_NAMES: Final = "pidlease/coordination/journal/journal_names.py"
_FENCES: Final = "pidlease/coordination/journal/journal_fences.py"
_ENTRIES: Final = "pidlease/coordination/journal/journal_members.py"
_NAME_BINDINGS: Final = "pidlease/coordination/name_bindings.py"

_IN_KAFKA: Final = "tests/kafka_backend/test_kafka_journal.py"
_SHARED_IN_KAFKA: Final = "tests/kafka_backend/test_shared_journal.py"
_MOVE: Final = "tests/kafka_backend/test_coordination_move.py"
_PARTS: Final = "tests/unit/coordination/test_journal.py"
_MEMBERS: Final = "tests/unit/coordination/test_journal_members.py"

COORDINATION: Final = (
    Mutant(
        "a row that is put again is missing for a moment",
        _JOURNAL,
        "            rows[row.id] = row.fields  #",
        "            rows.pop(row.id, None)\n            rows[row.id] = row.fields  #",
        (_IN_KAFKA,),
    ),
    Mutant(
        "what other calls have read is no sign of life",
        _JOURNAL,
        "        self._silent_looks = self._silent_looks + 1 if",
        "        if self._looked > 0:\n            self._looked = self._next\n"
        "        self._silent_looks = self._silent_looks + 1 if",
        (f"{_SHARED_IN_KAFKA}::test_what_other_calls_have_read_is_news_too",),
    ),
    Mutant(
        "rows that landed elsewhere than after the last ones count",
        _JOURNAL,
        "        if not result.code and result.offset != at:\n",
        "        if not result.code and result.offset < 0:\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "rows with an unknown outcome count as put",
        _JOURNAL,
        "            raise _UnknownOutcomeError(str(result))\n",
        "            return\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a server that was replaced becomes the writer again",
        _JOURNAL,
        '        if owner.get("run") != self._run:\n',
        "        if not owner:\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a server becomes the writer without reading up to its marker",
        _JOURNAL,
        "        while not self._has_marker(writer):\n",
        "        while False:\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a topic of an earlier version that has no rows is new",
        _JOURNAL,
        "        first = self._created and not self._rows\n",
        "        first = not self._rows\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a server that created the topic is the first one whenever it serves",
        _JOURNAL,
        "        first = self._created and not self._rows\n",
        "        first = self._created\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "an owner that shows itself during a takeover is replaced",
        _JOURNAL,
        "        if self._owner() is not owner and self._serves_elsewhere(self._owner()):\n",
        "        if False:\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a topic that was deleted is created again",
        _JOURNAL,
        "                if self.topic_id:\n",
        "                if False:\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "batches of a forgotten writer are not waited for",
        _JOURNAL,
        "        if now < self._late_until:\n            self._refuse_late(writer.pid)\n",
        "",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a standby takes over from an owner that is alive",
        _JOURNAL,
        "self._silent_looks + 1 if self._next == self._looked else 0\n",
        "self._silent_looks + 1\n",
        (_IN_KAFKA,),
    ),
    Mutant(
        "names change whatever was expected",
        _NAME_BINDINGS,
        "        if found == expected:\n",
        "        if found == expected or expected is not None:\n",
        (_PARTS,),
    ),
    Mutant(
        "a server that was replaced says which PIDs were leased",
        _JOURNAL,
        "        if self._claimed:\n            self._check_owner()\n",
        "",
        (_IN_KAFKA,),
    ),
    Mutant(
        "a read ends before the log does",
        _JOURNAL,
        "        end = await self._upstream.end_of(_PLACE)\n",
        "        end = self._next\n",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a batch that was found in the log is put again",
        _JOURNAL,
        "                if self._landed:\n                    return\n                await",
        "                await",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a batch that landed before another server took over counts as not put",
        _JOURNAL,
        "                    if self._landed:\n                        return  # another",
        "                    if False:\n                        return  # another",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a server that was replaced reports a conflict of what it has read before",
        _JOURNAL,
        "            await self._read_on()\n            self._check_owner()\n        if found",
        "            pass\n        if found",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "the numbers of one put are the same",
        _JOURNAL,
        "                last[row.kind] = before + 1\n",
        "",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "what a put expects does not count",
        _JOURNAL,
        "if self.get(row.kind, row.id) != row.fields), None)\n",
        "if False), None)\n",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a request for a former process is served",
        _SHARED,
        "not (self.is_registrar and hmac.compare_digest(request.run, self._run))",
        "not self.is_registrar",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a put with an unknown outcome is repeated whatever it expects",
        _SHARED,
        "                again = bool(expected)\n",
        "",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a server that cannot be reached is replaced again and again",
        _SHARED,
        '        if self._owner().get("run") != run or now < self._distrusts_until:\n',
        '        if self._owner().get("run") != run:\n',
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a server that could not be reached once is replaced whenever it serves",
        _SHARED,
        '        self._unreachable, self._unanswered = "", 0  # or',
        "        # or",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a server that another one has replaced stays unreachable",
        _SHARED,
        '            self._unreachable = ""  # it',
        "            pass  # it",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a server that is cut off replaces the registrar",
        _SHARED,
        "            and not self.abstains()\n",
        "",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "where nothing listens, the registrar is waited for",
        _SHARED,
        "            self._unreachable = run\n\n    async def serve",
        "            pass\n\n    async def serve",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a silent registrar stays",
        _SHARED,
        "            self._gone = owner\n            await self._registrar()\n",
        "            await self._registrar()\n",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "rows of a session stay when it has ended",
        _SHARED,
        "        self._heard = {each: self._heard.get(each, 0) + 1 for each in known}\n",
        "        self._heard = dict.fromkeys(known, 0)\n",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "active servers take over from one that serves alone",
        _SHARED,
        "        if self.stranger and self._silent_looks < SILENT_LOOKS:\n",
        "        if False:\n",
        (_SHARED_IN_KAFKA,),
    ),
    Mutant(
        "a block with an unknown outcome is taken again",
        _SEQUENCE,
        "        last, self._last = self._last, None\n",
        "        last = self._last\n",
        (_PARTS,),
    ),
    Mutant(
        "a block that was merged meanwhile is taken again",
        _SEQUENCE,
        "            expected.append(_row(last))\n",
        "            pass\n",
        (_MEMBERS,),
    ),
    Mutant(
        "blocks are removed before they are merged",
        _SEQUENCE,
        "        try:\n            self._journal.put(merged, replaced)\n"
        "        except JournalConflictError:\n            return  # another server merges them\n",
        "",
        (_PARTS,),
    ),
    Mutant(
        "a merge removes what another server takes meanwhile",
        _SEQUENCE,
        "        gone = sorted(rows.keys() - kept)\n",
        "        gone = sorted(self._rows().keys() - kept)\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a name is granted without its fence",
        _NAMES,
        "            rows += [self._fences.row(each) for each in granted]\n",
        "            pass\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a binding that has changed meanwhile is replaced",
        _NAMES,
        "                self._put(after, [Row(_KIND, name, before[name]) for name in after])\n",
        "                self._put(after, [])\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a reader of fences is not told that some were removed",
        _FENCES,
        "        if rows[0][0] != position.node + 1:\n            return (), None\n",
        "",
        (_MEMBERS,),
    ),
    Mutant(
        "the last fence is removed",
        _FENCES,
        "[:-1][:_REMOVED_MAX]",
        "[:_REMOVED_MAX]",
        (_MEMBERS,),
    ),
    Mutant(
        "a late process removes the entry of the next one",
        _ENTRIES,
        "        if self._is_mine(own.fields):\n",
        "        if True:\n",
        (_MEMBERS,),
    ),
    Mutant(
        "the map is written whatever its version",
        _ENTRIES,
        '        if (-1 if before is None else before["change"]) != slots.version:\n',
        "        if False:\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a server that stood by goes on with what was moved",
        "pidlease/coordination/zookeeper/zookeeper_ownership.py",
        "            self._zookeeper.check_not_moved()\n",
        "",
        (_MOVE,),
    ),
    Mutant(
        "a directory that used ZooKeeper is used before all was moved",
        "proxy/backends/coordination_backend.py",
        "            if is_moving(journal):\n",
        "            if False:\n",
        (_MOVE,),
    ),
    Mutant(
        "all settings of a book are put in one batch",
        "pidlease/coordination/journal/journal_topic_book.py",
        "                for some in portions(rows):\n",
        "                for some in [rows]:\n",
        (_PARTS,),
    ),
    Mutant(
        "settings that were put in part count as all",
        "pidlease/coordination/journal/journal_topic_book.py",
        "            if ALL_TOPICS in there or there - own.keys():\n",
        "            if there:\n",
        (_PARTS,),
    ),
    Mutant(
        "the counter of node ids is not moved",
        "proxy/backends/coordination_move.py",
        "    rows.append(node_ids_row(ZooKeeperMembers(zookeeper, cluster).next_node_id()))\n",
        "",
        (_MOVE,),
    ),
    Mutant(
        "a new server gets the node id of a living one",
        _ENTRIES,
        "lambda _: [], max(used, default=0) + 1)\n",
        "lambda _: [])\n",
        (_MEMBERS,),
    ),
    Mutant(
        "what is in ZooKeeper is moved while a server uses it",
        "proxy/backends/coordination_move.py",
        "    if running:\n",
        "    if False:\n",
        (_MOVE,),
    ),
)

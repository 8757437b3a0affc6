"""What must not go unnoticed where several servers share a coordinator, or a cluster."""

from typing import Final

from tests.mutants.mutant import Mutant

_CONNECTION: Final = "pidlease/coordination/zookeeper/zookeeper_connection.py"
_BLOCKS: Final = "pidlease/engine/leases/pid_blocks.py"
_LOOKUP: Final = "pidlease/engine/appenders/block_lookup.py"
_PARTITION: Final = "pidlease/engine/partition.py"
_WRITER_IDS: Final = "pidlease/coordination/zookeeper/zookeeper_writer_ids.py"
_CLUSTER: Final = "pidlease/kafka/client/all_topics_cluster.py"
_LAGGING: Final = "tests/unit/coordination/test_zookeeper_sync.py"
_LOOKS: Final = "tests/unit/engine/test_block_lookup.py"
_WRITERS: Final = "tests/unit/log/test_kafka_writers.py"
_QUESTIONS: Final = "tests/unit/kafka/test_cluster_questions.py"

SHARING: Final = (
    Mutant(
        "reads of ZooKeeper go without a sync",
        _CONNECTION,
        "            lambda client: [client.sync_async(path), *ask(client)], (NoNodeError,)\n"
        "        )[1:]\n",
        "            ask, (NoNodeError,)\n        )\n",
        (_LAGGING,),
    ),
    Mutant(
        "a look that has begun serves those who come meanwhile",
        "pidlease/coordination/shared_call.py",
        "        self._running, self._next = self._next, None\n"
        "        try:\n"
        "            return await self._call()\n"
        "        finally:\n",
        "        try:\n"
        "            return await self._call()\n"
        "        finally:\n"
        "            self._running, self._next = self._next, None\n",
        (_LOOKS,),
    ),
    Mutant(
        "what lies below a block of our own is thought to be known",
        _BLOCKS,
        "number_of(pid) >= self._known_end",
        "number_of(pid) >= self.ages.end",
        (_LOOKS,),
    ),
    Mutant(
        "batches pass one that waits for the look",
        _PARTITION,
        "not read.pid_blocks and self._lookup.holds(pid)",
        "not read.pid_blocks and self._lookup is None",
        (_LOOKS,),
    ),
    Mutant(
        "a PID is unknown where the coordinator is away",
        _LOOKUP,
        "            return _UNKNOWN_YET\n",
        "            return None\n",
        (_LOOKS,),
    ),
    Mutant(
        "nobody is told that a batch in front of those that wait for the look has failed",
        _PARTITION,
        "            self._lookup.fail(pid)\n",
        "            self._lookup.holds(pid)\n",
        (_LOOKS,),
    ),
    Mutant(
        "the wait for late writes counts from the start of the process",
        "pidlease/log/kafka/kafka_writers.py",
        "        self._ids.update(known)\n        self._took_over_ms = self._clock_ms()\n",
        "        self._ids.update(known)\n",
        (_WRITERS,),
    ),
    Mutant(
        "an id of a writer is not recorded where servers of before look for it",
        _WRITER_IDS,
        '                self._zookeeper.make(f"{self._root}/{pid}", fields)\n',
        "",
        (_LAGGING,),
    ),
    Mutant(
        "ids of writers overwrite those of another server",
        _WRITER_IDS,
        "client.set_async(path, data, tail.version)",
        "client.set_async(path, data)",
        (_LAGGING,),
    ),
    Mutant(
        "a question that is under way serves those who come meanwhile",
        _CLUSTER,
        "                question, self._question = self._question, None\n"
        "                absent: Set[str] | UpstreamError\n"
        "                try:\n"
        "                    absent = await self._ask_question(question.names)\n",
        "                question = self._question\n"
        "                absent: Set[str] | UpstreamError\n"
        "                try:\n"
        "                    absent = await self._ask_question(set(question.names))\n"
        "                    self._question = None\n",
        (_QUESTIONS,),
    ),
    Mutant(
        "what Kafka does not tell does not exist",
        _CLUSTER,
        "        if name in absent or illegal_name(name):\n",
        "        if name in absent or name not in answered or illegal_name(name):\n",
        (_QUESTIONS,),
    ),
    Mutant(
        "a broker that lags behind is believed that there is no topic",
        _CLUSTER,
        "others[:_QUESTION_OTHERS_MAX] if absent else ()",
        "()",
        (_QUESTIONS,),
    ),
    Mutant(
        "a look and a question for topics overtake one another",
        _CLUSTER,
        "        started = time.monotonic()\n"
        "        async with self._viewing:\n"
        "            connection = await self.any_connection()\n"
        "            found = await self._view_of(connection, names)",
        "        started = time.monotonic()\n"
        "        async with asyncio.Lock():\n"
        "            connection = await self.any_connection()\n"
        "            found = await self._view_of(connection, names)",
        (_QUESTIONS,),
    ),
)

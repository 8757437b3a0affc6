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

_MOVES: Final = "pidlease/engine/topics/partition_moves.py"
_MOVED: Final = "tests/unit/engine/test_partition_moves.py"
_SHARED: Final = "pidlease/engine/shared_cluster.py"
_SHARING: Final = "tests/unit/engine/test_shared_cluster.py"
_LIVENESS: Final = "pidlease/core/liveness.py"
_RULES: Final = "tests/unit/core/test_liveness.py"
_PINGS: Final = "tests/unit/engine/test_member_pings.py"
_FORWARDED: Final = "proxy/kafka/forwarded/forwarded_apis.py"
_KAFKA_WRITERS: Final = "pidlease/log/kafka/kafka_writers.py"
_KAFKA_LOG: Final = "pidlease/log/kafka/kafka_partition_log.py"
_NAMED: Final = "pidlease/engine/named_leases.py"
_LEASES: Final = "pidlease/engine/leases/leases.py"
_FENCES: Final = "tests/unit/engine/test_fence_reader.py"
_SLOTS: Final = "pidlease/core/slots.py"

_SUPERVISOR: Final = "proxy/workers/supervisor.py"
_WORKER_PROCESS: Final = "proxy/workers/worker_process.py"
_SUPERVISED: Final = "tests/integration/test_supervisor.py"

_SERVER_ROUTES: Final = "tests/http_api/test_server_routes.py"
_LIMIT: Final = "proxy/http/connection_limit.py"
_LIMITED: Final = "tests/http_api/test_connection_limit.py"
_SLOW: Final = "tests/http_api/test_slow_requests.py"

SHARING: Final = (
    Mutant(
        "what follows a batch that was refused in a takeover is a gap",
        _PARTITION,
        "        if kind is Kind.GAP and self._may_be_elsewhere(rules, pid):\n",
        "        if False:\n",
        ("tests/unit/engine/test_kafka_appender.py",),
    ),
    Mutant(
        "a member that does not answer keeps its slots",
        _LIVENESS,
        "        return Deciders(order, silent.union(returning), silent)\n",
        "        return Deciders(order)\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "an answer with news is not acted upon",
        _LIVENESS,
        "        news = peer.silent or _findings(report) != _findings(peer.report)\n",
        "        news = False\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "a report is kept over a tick",
        _LIVENESS,
        'members to ping now."""\n        self._findings = None\n',
        'members to ping now."""\n',
        (_RULES, _PINGS),
    ),
    Mutant(
        "a member that answers once gets its slots back",
        _LIVENESS,
        "                peer.suspected = peer.answered < RETURN_TICKS\n",
        "                peer.suspected = False\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "a member that others have taken the slots of takes them back",
        _LIVENESS,
        "        found = (node for node in self._by_age if node in in_map)\n",
        "        found = iter(self._by_age)\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "a member that reaches few others gives slots to all",
        _LIVENESS,
        "            return Deciders(order, frozenset(self._by_age).difference(order))\n",
        "            return Deciders(order)\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "a later member goes by its own pings",
        _LIVENESS,
        "        if first is None or first == self._own:\n",
        "        if True:\n",
        (_RULES, _PINGS),
    ),
    Mutant(
        "a closed connection means the end of a process",
        "proxy/http/ping_connection.py",
        "        for last in (False, True):\n",
        "        for last in (True,):\n",
        ("tests/http_api/test_pings.py",),
    ),
    Mutant(
        "requests in flight wait for a member that does not answer pings",
        "pidlease/engine/member_pings.py",
        "            for each in self._waiting.pop(node, ()):\n",
        "            for each in ():\n",
        (_PINGS,),
    ),
    Mutant(
        "requests to an owner that hangs hold up those to others",
        "proxy/http/owner_requests.py",
        "        found = self._clients.get((member.http_url, reads))\n",
        "        found = next(iter(self._clients.values()), None)\n",
        ("tests/http_api/test_sent_on.py",),
    ),
    Mutant(
        "the last server is drained, too",
        _SHARED,
        "        if not set(_owners(self._view, self.pings.silent)) - {self.node_id}:\n",
        "        if False:\n",
        (_SERVER_ROUTES, _SHARING),
    ),
    Mutant(
        "a rebalance moves nothing while the servers are the same",
        _SLOTS,
        "    if not members or (are_divided(before, members) and not anew):\n",
        "    if not members or are_divided(before, members):\n",
        (_SERVER_ROUTES, "tests/unit/core/test_slots.py"),
    ),
    Mutant(
        "a rebalance writes over a map that has changed",
        _SHARED,
        "            except MapConflictError:\n                continue\n",
        "            except MapConflictError:\n                return 0\n",
        (_SHARING,),
    ),
    Mutant(
        "a request to drain another server drains this one",
        "proxy/http/server_routes.py",
        "        if node_id != current.node_id:\n",
        "        if False:\n",
        (_SERVER_ROUTES,),
    ),
    Mutant(
        "several servers start in front of a Kafka that reports no writers",
        "proxy/backends/shared_partitions.py",
        "        if found[broker] is False:\n",
        "        if False:\n",
        ("tests/unit/test_brokers_checked.py",),
    ),
    Mutant(
        "workers outlive a supervisor that is killed",
        _WORKER_PROCESS,
        "    if system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):\n",
        "    if False:\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "a worker that ends again and again is started again at once",
        _WORKER_PROCESS,
        "        self._failures += 1\n",
        "        self._failures = 1\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "workers are stopped all at once",
        _SUPERVISOR,
        "                self._await_end(each, wake)\n",
        "        for each in reversed(self._workers):\n"
        "            if each.runs:\n"
        "                self._await_end(each, wake)\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "the service manager hears of a start when the first worker serves",
        _SUPERVISOR,
        "            started=self._complete,\n",
        "            started=serving > 0,\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "a worker that hangs is left alone",
        _SUPERVISOR,
        "                worker.send(signal.SIGKILL)\n            return\n",
        "                pass\n            return\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "a worker that cannot start is started again and again",
        _SUPERVISOR,
        "        if code == _CANNOT_START and not served and not self._complete:\n",
        "        if False:\n",
        (_SUPERVISED,),
    ),
    Mutant(
        "the fences of names are not read after a writer is taken",
        _KAFKA_WRITERS,
        "        if self.after_take is not None:\n            await self.after_take()\n",
        "",
        (_WRITERS,),
    ),
    Mutant(
        "the fences of names are read before the writer is taken",
        _KAFKA_WRITERS,
        "            await self._check_owner(partition)\n",
        "            if self.after_take is not None:\n"
        "                await self.after_take()\n"
        "            await self._check_owner(partition)\n",
        (_WRITERS,),
    ),
    Mutant(
        "the two minutes of a writer's new id count from the start, not from the move",
        _KAFKA_WRITERS,
        "            self._since_ms[partition] = self._clock_ms()\n",
        "",
        (_WRITERS,),
    ),
    Mutant(
        "any server passes on batches under Kafka's own ids, also those of unknown writers",
        _FORWARDED,
        "return found is not None and not found.elsewhere and self._writers.knows(partition)",
        "return self._writers.knows(partition)",
        ("tests/kafka_backend/test_shared_settings.py",),
    ),
    Mutant(
        "clients may send under a former owner's id until it is met",
        _KAFKA_WRITERS,
        "            self._opened_at[partition] = time.monotonic()\n",
        "",
        (_WRITERS,),
    ),
    Mutant(
        "a record of a transaction names a producer",
        "pidlease/kafka/records/writer_batch.py",
        "    return not header.is_control and not header.is_transactional\n",
        "    return not header.is_control\n",
        ("tests/unit/log/test_kafka_log.py",),
    ),
    Mutant(
        "batches under another server's writer are applied without their producer",
        _KAFKA_LOG,
        "                    await self._writers.learn(unknown)\n",
        "                    pass\n",
        ("tests/unit/log/test_kafka_log.py",),
    ),
    Mutant(
        "a read waits on at a former owner",
        "proxy/http/record_pages.py",
        " or bool(partition.elsewhere) or left.done()\n",
        " or left.done()\n",
        ("tests/http_api/test_sent_on.py",),
    ),
    Mutant(
        "an append is refused if the owner shows while its body arrives",
        "proxy/http/record_routes.py",
        "            if found.elsewhere:  # it was found",
        "            if False:  # it was found",
        ("tests/http_api/test_sent_on.py",),
    ),
    Mutant(
        "a slot that another server has owned in between still counts as owned",
        _SHARED,
        "slots.owners[slot] == self.node_id and slots.epochs[slot] == epoch\n",
        "slots.owners[slot] == self.node_id\n",
        (_SHARING, _MOVED),
    ),
    Mutant(
        "a partition that another server has owned in between goes on",
        _MOVES,
        "            if not partition.elsewhere and epoch != partition.epoch:\n",
        "            if not partition.elsewhere and epoch is None:\n",
        (_MOVED,),
    ),
    Mutant(
        "a partition that is lost while its log is read is served",
        "pidlease/engine/topics/topic_sync.py",
        "            if not each.elsewhere:  # another server may own it by now\n"
        "                self._claims(each)\n",
        "            pass\n",
        (_MOVED,),
    ),
    Mutant(
        "a snapshot has partitions that another server may have written to",
        _MOVES,
        " and self._cluster.still_owns(slots, each.name, each.epoch)\n",
        "\n",
        (_MOVED,),
    ),
    Mutant(
        "a former PID without a lease here is not fenced",
        _NAMED,
        "            if every or pid in self._leases:\n                fences[pid] =",
        "            if pid in self._leases:\n                fences[pid] =",
        (_MOVED,),
    ),
    Mutant(
        "internal topics take part in dividing the slots",
        "pidlease/core/slots.py",
        "        if topic in INTERNAL_TOPICS:\n",
        "        if False:\n",
        ("tests/unit/core/test_slots.py",),
    ),
    Mutant(
        "a name is new where nothing was seen of its PID",
        _NAMED,
        "        if self._leases.keeps_fences:\n",
        "        if False:\n",
        ("tests/unit/engine/test_named_leases.py",),
    ),
    Mutant(
        "a name goes on with its last PID only",
        _PARTITION,
        "        for _ in range(_FORMERS_MAX):\n",
        "        for _ in range(1):\n",
        ("tests/unit/engine/test_named_leases.py",),
    ),
    Mutant(
        "bindings that could not be read are not read again",
        "pidlease/engine/fence_reader.py",
        "        await load()\n",
        "        self._position = position\n        await load()\n",
        (_FENCES,),
    ),
    Mutant(
        "a fence ends with the first grant",
        "pidlease/engine/fence_reader.py",
        "            self._kept.pop(pid, None)  # the latest grant counts\n"
        "            self._kept[pid] = until_ms\n",
        "            self._kept.setdefault(pid, until_ms)\n",
        (_FENCES,),
    ),
    Mutant(
        "a server leases from an old block",
        _LEASES,
        "        self.blocks.refresh()\n",
        "",
        ("tests/unit/engine/test_leases.py", "tests/unit/engine/test_named_leases.py"),
    ),
    Mutant(
        "a fence ends with the lease here",
        _LEASES,
        "            if not self.keeps_fences:\n",
        "            if True:\n",
        (_MOVED,),
    ),
    Mutant(
        "a server that does not reach the coordinator goes on beside others",
        _SHARED,
        "            if silent and len(self._view.members) > 1:\n",
        "            if silent and len(self._view.members) > 9:\n",
        (_SHARING,),
    ),
    Mutant(
        "a view that was read before a suspension is used",
        _SHARED,
        "        if self._seconds() - began > self._session_seconds:\n",
        "        if began < 0:\n",
        (_SHARING,),
    ),
    Mutant(
        "a joining server gets slots of all that there are, again and again",
        _SLOTS,
        "    if not members or (are_divided(before, members) and not anew):\n",
        "    if not members:\n",
        ("tests/unit/core/test_slots.py",),
    ),
    Mutant(
        "batches that were validated before another server was the writer are sent after it",
        "pidlease/engine/appenders/writer_appender.py",
        "(former is None or writer != (former.pid, former.epoch + 1))",
        "former is None",
        ("tests/unit/engine/test_kafka_appender.py",),
    ),
    Mutant(
        "a takeover does not read to the writer's marker",
        "pidlease/engine/appenders/writer_takeover.py",
        "            if marked:\n",
        "            if end >= 0:\n",
        ("tests/unit/engine/test_kafka_appender.py",),
    ),
    Mutant(
        "where a PID continues is answered by a server that hands the partition over",
        _PARTITION,
        "        return await known and not self.gone and not self.elsewhere\n",
        "        return await known and not self.gone\n",
        ("tests/unit/engine/test_kafka_appender.py",),
    ),
    Mutant(
        "a server that was suspended for some seconds sends what came before",
        _SHARED,
        "        others = len(self._view.members) > 1\n",
        "        others = False\n",
        (_SHARING,),
    ),
    Mutant(
        "a grant gets the generation that the partition's owner knows by then",
        "pidlease/engine/lease_service.py",
        "            return replace(found, name=name, generation=grant.generation)\n",
        "            return replace(found, name=name)\n",
        ("tests/unit/engine/test_named_leases.py",),
    ),
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
    Mutant(
        "clients take the place of another server's idle connection",
        _LIMIT,
        "            if self._limit.reserve and oldest.is_of_member():\n",
        "            if not oldest:\n",
        (_LIMITED,),
    ),
    Mutant(
        "clients keep the connections beyond the limit",
        _LIMIT,
        "        self._note_closed(was_idle=False)\n        return False\n",
        "        return True\n",
        (_LIMITED,),
    ),
    Mutant(
        "a failed TLS handshake counts as a connection for ever",
        "proxy/http/http_protocol.py",
        "            self._port.closed(self)  # its handshake has failed\n",
        "            pass\n",
        ("tests/secure/test_http_handshakes.py",),
    ),
    Mutant(
        "clients hold the memory for rows and states of other servers",
        "proxy/http/body_limit.py",
        "self._member_memory if scope",
        "self._memory if scope",
        (_SLOW,),
    ),
    Mutant(
        "a body that comes byte by byte takes as long as it likes",
        "proxy/http/request_memory.py",
        "min(now() + IDLE_SECONDS, end + len(body) / _BODY_BYTES_A_SECOND)",
        "max(now() + IDLE_SECONDS, end)",
        (_SLOW,),
    ),
)

"""What must not go unnoticed in front of Kafka."""

from typing import Final

from tests.mutants.mutant import Mutant

_LANES: Final = "pidlease/engine/appenders/kafka_appender.py"
_FRONTIER: Final = "pidlease/engine/appenders/applied_offset.py"
_PARTITION: Final = "pidlease/engine/partition.py"
_WRITING: Final = "pidlease/engine/appenders/writer_appender.py"
_SIM: Final = "tests/unit/engine/test_kafka_appender.py"
_JOINED: Final = "tests/unit/kafka/test_joined.py"
_LINK: Final = "pidlease/kafka/client/broker_connection.py"
_CHANNELS: Final = "pidlease/kafka/client/produce_channels.py"
_LINKED: Final = "tests/kafka_backend/test_link.py"
_SENT: Final = "tests/kafka_backend/test_channels.py"
_CLUSTER: Final = "pidlease/kafka/client/cluster.py"
_CLIENT_LINKS: Final = "proxy/kafka/forwarded/client_brokers.py"
_KAFKA_LOG: Final = "pidlease/log/kafka/kafka_partition_log.py"
_LOOKED: Final = "tests/kafka_backend/test_cluster_looks.py"
_READ: Final = "tests/unit/log/test_kafka_log.py"
_CODES: Final = "pidlease/kafka/produce_errors.py"
_CLASSES: Final = "pidlease/kafka/error_codes.py"
_EACH_CODE: Final = "tests/unit/engine/test_produce_errors.py"

_FETCHING: Final = "proxy/kafka/forwarded/leader_fetches.py"
_HELD: Final = "tests/kafka_listener/test_fetch_held.py"
_MEMORY: Final = "proxy/kafka/forwarded/response_memory.py"
_FITS: Final = "tests/kafka_listener/test_leader_memory.py"
_WRITER: Final = "pidlease/kafka/records/writer_batch.py"
_CONTENT: Final = "tests/http_api/test_records_content.py"
_REPEATS: Final = "pidlease/observability/repeated_lines.py"
_LINES: Final = "tests/unit/test_repeated_lines.py"

UPSTREAM: Final = (
    Mutant(
        "a response that hangs is waited for",
        "proxy/kafka/forwarded/leader_fetches.py",
        "                if not answer.done() and connection.received == before:\n",
        "                if not answer:\n",
        ("tests/kafka_listener/test_leader_memory.py",),
    ),
    Mutant(
        "reads that wait for Kafka keep others waiting",
        "proxy/http/log_reads.py",
        "                self._fetching.release()\n                is_in_turn = False\n",
        "                pass\n",
        ("tests/http_api/test_records_read.py",),
    ),
    Mutant(
        "reads of Kafka do not take turns",
        "proxy/http/log_reads.py",
        "asyncio.Semaphore(max(memory.limit // _PART_BYTES, 2))",
        "asyncio.Semaphore(1000)",
        ("tests/http_api/test_records_read.py",),
    ),
    Mutant(
        "what follows a refused head is a request",
        "proxy/http/http_protocol.py",
        "        if self._refusal is not None or self.transport.is_closing():\n",
        "        if self._refusal is not None:\n",
        ("tests/http_api/test_pipelined_requests.py",),
    ),
    Mutant(
        "all requests that arrive are parsed",
        "proxy/http/http_protocol.py",
        "return bool(self._unparsed) or len(self.pipeline) > _SUBMITTED_MAX",
        "return bool(self._unparsed)",
        ("tests/http_api/test_pipelined_requests.py",),
    ),
    Mutant(
        "a client makes its topic a fork by settings",
        "pidlease/storage/topics/topic_settings.py",
        "        check_change(before, after)\n",
        "",
        ("tests/secure/test_http_access.py",),
    ),
    Mutant(
        "a batch under an id of Kafka's own is sent on in a request with a transactional id",
        "proxy/kafka/produce_api.py",
        "        if not header.is_transactional:\n",
        "        if header is None:\n",
        ("tests/kafka_backend/test_shared_settings.py",),
    ),
    Mutant(
        "tagged fields have no bound",
        "pidlease/kafka/codec/primitives.py",
        "        if count > _TAGS_MAX or self._elements_left < 0:\n",
        "        if count < 0:\n",
        ("tests/kafka_listener/test_primitives.py",),
    ),
    Mutant(
        "OffsetFetch returns that the coordinator of a group has moved",
        "proxy/kafka/forwarded/forwarded_apis.py",
        "            if attempt == _COORDINATORS_MAX or not has_moved(",
        "            if attempt or not has_moved(",
        ("tests/kafka_backend/test_offset_fetch_moved.py",),
    ),
    Mutant(
        "a log that was served begins at its end",
        "pidlease/engine/recovery.py",
        "return is_first and snapshot is None and not len(self.leases.blocks.ages)",
        "return is_first and snapshot is None",
        ("tests/kafka_backend/test_first_start.py",),
    ),
    Mutant(
        "a topic that exists counts as created",
        "pidlease/log/kafka/kafka_log_store.py",
        "            return False\n        except UpstreamError as error:\n",
        "            return True\n        except UpstreamError as error:\n",
        ("tests/kafka_backend/test_first_start.py",),
    ),
    Mutant(
        "a leader that is away is told at once",
        _FETCHING,
        "        _code(row) not in HELD_BACK and bool(_code(row))\n",
        "        bool(_code(row))\n",
        (_HELD,),
    ),
    Mutant(
        "errors that a client acts on are held back",
        _FETCHING,
        "        _code(row) not in HELD_BACK and bool(_code(row))\n",
        "        False\n",
        (_HELD,),
    ),
    Mutant(
        "a new leader does not end the wait of a Fetch",
        _FETCHING,
        "        cluster.on_change.append(self._changed)\n",
        "",
        (_HELD,),
    ),
    Mutant(
        "the error of one partition ends the wait of its broker's others",
        _FETCHING,
        "            if done or (idle and len(rows) == known):\n",
        "            if done or rows:\n",
        (_HELD,),
    ),
    Mutant(
        "responses of leaders are read without memory for them",
        _FETCHING,
        "            connection.admits = partial(fetches.admits, connection)\n",
        "",
        (_FITS,),
    ),
    Mutant(
        "each leader returns as much as all together may",
        _MEMORY,
        "        share = self.bytes_max // max(leaders, 1)\n",
        "        share = self.bytes_max\n",
        (_FITS,),
    ),
    Mutant(
        "memory is reserved for the first response only",
        _MEMORY,
        "        elif more > 0 and not self._slot.reserve(more):\n",
        "        elif more > 0 and self._slot.count(more):\n",
        (_FITS,),
    ),
    Mutant(
        "a response that waits for memory is left for ever",
        _FETCHING,
        "                    if waits and fetches.admits(before.connection, waits):\n",
        "                    if False:\n",
        (_FITS,),
    ),
    Mutant(
        "a send of one time is compared with its time",
        _WRITER,
        "    if header.base_timestamp == header.max_timestamp:\n",
        "    if header.base_timestamp == header.max_timestamp == 0:\n",
        (_CONTENT,),
    ),
    Mutant(
        "a send of several times is compared without them",
        _WRITER,
        "    if header.base_timestamp == header.max_timestamp:\n",
        "    if header.base_timestamp <= header.max_timestamp:\n",
        (_CONTENT, _JOINED),
    ),
    Mutant(
        "a replay compares by the CRC of the batch",
        _WRITER,
        "    crc = crc_of_send(header, data)\n    return LoggedBatch(",
        "    crc = header.crc\n    return LoggedBatch(",
        (_CONTENT, _JOINED),
    ),
    Mutant(
        "a request with some of its times is compared",
        "pidlease/engine/append_service.py",
        "crc_of_send(header, data) if repeatable else UNKNOWN_CRC",
        "crc_of_send(header, data)",
        (_CONTENT,),
    ),
    Mutant(
        "CRCs of an older rule are compared",
        "pidlease/storage/snapshot_tables.py",
        "        keeps_crcs = crcs_are_comparable or rules is KAFKA\n",
        "        keeps_crcs = True\n",
        ("tests/unit/storage/test_snapshots.py",),
    ),
    Mutant(
        "the last count of repeated lines is lost",
        _REPEATS,
        "            if oldest.write is not None:\n",
        "            if oldest.write is not None and len(self._causes) > self._causes_max:\n",
        (_LINES,),
    ),
    Mutant(
        "a broker that goes down may want TLS",
        "pidlease/kafka/client/bootstrap.py",
        "        if connection.address in config.responded:\n",
        "        if connection.address in ():\n",
        ("tests/kafka_backend/test_link.py",),
    ),
    Mutant(
        "clients are told paths",
        "pidlease/storage/errors.py",
        "    if error.strerror:\n        return error.strerror\n",
        "    if error.strerror:\n        return str(error)\n",
        ("tests/http_api/test_no_paths.py",),
    ),
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
        "min(header.max_timestamp, now_ms) + kept_ms",
        "now_ms + kept_ms",
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
        "{_ALL_PRODUCERS: (end, now_ms)}",
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
        "pidlease/engine/producer_table.py",
        "                if state is None or offset_of(rules, state) < offset:\n",
        "                if state is None or offset_of(rules, state) != offset:\n",
        (_SIM,),
    ),
    Mutant(
        "batches behind one that failed are still waited for",
        _LANES,
        "        queue.in_flight.clear()\n",
        "        queue.in_flight.rotate(0)\n",
        (_SIM,),
    ),
    Mutant(
        "a batch without a PID puts an end to doubts",
        _LANES,
        "        if pid:\n            self._applied_offset.settled(pid)\n",
        "        self._applied_offset.settled(pid)\n        if pid:\n",
        (_SIM,),
    ),
    Mutant(
        "the writer's marker is not waited for",
        "pidlease/engine/appenders/writer_takeover.py",
        "            if marked:\n",
        "            if end >= 0:\n",
        (_SIM,),
    ),
    Mutant(
        "the writer goes on after an unknown outcome",
        _WRITING,
        "        self.writer = None\n        if not in_doubt and not self._waiting:\n",
        "        if not in_doubt and not self._waiting:\n",
        (_SIM,),
    ),
    Mutant(
        "sends that were joined are read as one",
        "pidlease/kafka/records/joined_batch.py",
        "identity._replace(records=records)",
        "identity._replace(records=0)",
        (_JOINED,),
    ),
    Mutant(
        "what waits for the log passes one that failed",
        "pidlease/engine/appenders/catch_up.py",
        "            self._failed[producer] = self._waiting[producer]\n",
        "            self._failed.pop(producer, None)\n",
        (_SIM,),
    ),
    Mutant(
        "what is known here is all there is",
        _PARTITION,
        "        if not self._shared or read.log:\n",
        "        if self._shared or read.log:\n",
        (_SIM,),
    ),
    Mutant(
        "a failed batch holds off what may follow it elsewhere",
        _PARTITION,
        "            if not self._reads_on(pending, read):\n",
        "            if pending:\n",
        (_SIM,),
    ),
    Mutant(
        "a failed batch holds off those before it",
        "pidlease/engine/appenders/failed_batches.py",
        "if not _is_before(pid, failed.first, batch.first):",
        "if failed.first == batch.first:",
        ("tests/unit/engine/test_partition.py",),
    ),
    Mutant(
        "failed ranges with 64-bit numbers are compared modulo 2^31",
        "pidlease/engine/appenders/failed_batches.py",
        "    if rules is not None and not rules.wraps:\n        return sequence < other\n",
        "",
        ("tests/unit/engine/test_partition.py",),
    ),
    Mutant(
        "a batch without a leader gets its outcome within the send",
        "pidlease/kafka/client/produce_channels.py",
        "                asyncio.get_running_loop().call_soon(send.completed, error)\n",
        "                send.completed(error)\n",
        ("tests/unit/engine/test_leader_gone.py",),
    ),
    Mutant(
        "a Fetch goes on waiting when another request follows",
        "proxy/kafka/client_connection.py",
        "        if self._poll is not None and slot.api_key != self._poll[0]:\n",
        "        if self._poll is not None and slot.api_key == self._poll[0]:\n",
        ("tests/kafka_listener/test_fetch.py",),
    ),
    Mutant(
        "in-flight state wins over what was read from the log",
        _PARTITION,
        "                self._pushed[pid] = state\n",
        "                pass\n",
        (_SIM,),
    ),
    Mutant(
        "a server that was replaced refuses batches",
        _PARTITION,
        "        if owned is False:\n",
        "        if owned is None:\n",
        (_SIM,),
    ),
    Mutant(
        "a server that cannot ask who the owner is refuses batches",
        _PARTITION,
        "        self._read_as_owner = as_owner\n",
        "        self._read_as_owner = True\n",
        (_SIM,),
    ),
    Mutant(
        "a server that was replaced leaves a snapshot",
        "pidlease/engine/maintenance.py",
        "            await self._check_owned()\n",
        "",
        ("tests/unit/engine/test_maintenance.py",),
    ),
    Mutant(
        "a snapshot from before Kafka lost records stays",
        "pidlease/engine/maintenance.py",
        "            if read_again:\n                await self._remove_ahead(read_again)\n",
        "",
        ("tests/kafka_backend/test_forgetting.py::test_a_snapshot_from_before_a_loss_is_not_used",),
    ),
    Mutant(
        "a compression type that the broker lacks is a stale leader",
        _CLASSES,
        "    UNSUPPORTED_COMPRESSION_TYPE: _C.CONTENT,\n",
        "    UNSUPPORTED_COMPRESSION_TYPE: _C.CONTENT | _C.STALE_LEADER,\n",
        (_SENT,),
    ),
    Mutant(
        "an unknown topic id is no stale metadata",
        _CLASSES,
        "    UNKNOWN_TOPIC_ID: _C.STALE_LEADER | ",
        "    UNKNOWN_TOPIC_ID: ",
        (_SENT, "tests/unit/kafka/test_error_codes.py"),
    ),
    Mutant(
        "a batch that timed out is certainly not stored",
        _CODES,
        "ProduceError(REQUEST_TIMED_OUT, _MAYBE",
        "ProduceError(REQUEST_TIMED_OUT, _NO",
        (f"{_EACH_CODE}::test_a_code_under_the_writer",),
    ),
    Mutant(
        "a batch that too few replicas have is certainly not stored",
        _CODES,
        "ProduceError(NOT_ENOUGH_REPLICAS_AFTER_APPEND, _MAYBE",
        "ProduceError(NOT_ENOUGH_REPLICAS_AFTER_APPEND, _NO",
        (f"{_EACH_CODE}::test_a_code_under_the_writer",),
    ),
    Mutant(
        "a replica that was removed has certainly not stored a batch",
        _CODES,
        "ProduceError(UNKNOWN_TOPIC_OR_PARTITION, _MAYBE",
        "ProduceError(UNKNOWN_TOPIC_OR_PARTITION, _NO",
        (f"{_EACH_CODE}::test_a_code_under_the_writer",),
    ),
    Mutant(
        "what is not in the table is certainly not stored",
        _CODES,
        "ProduceError(code, Stored.UNEXPECTED,",
        "ProduceError(code, Stored.NO,",
        (f"{_EACH_CODE}::test_a_code_under_the_writer",),
    ),
    Mutant(
        "what follows a batch that met no owner is a gap",
        "pidlease/engine/partition.py",
        "            self._give_up(pending, LOST)\n",
        "            self._reject(pending, policy_of(pid), LOST)\n",
        (f"{_SIM}::test_what_follows_a_batch_that_met_no_owner_is_no_gap",),
    ),
    Mutant(
        "the newest request decides what is late",
        _LINK,
        "time.monotonic() > self._in_flight[0].latest",
        "time.monotonic() > self._in_flight[-1].latest",
        (_LINKED,),
    ),
    Mutant(
        "a request's own time does not count",
        _LINK,
        "(seconds or self._seconds)",
        "self._seconds",
        (_LINKED,),
    ),
    Mutant(
        "who waits for room on a connection is not told",
        _LINK,
        "            self._changed()\n\n    @override\n    def get_buffer",
        "\n    @override\n    def get_buffer",
        (_LINKED,),
    ),
    Mutant(
        "a woken server sends what the socket had no room for",
        "pidlease/kafka/client/socket_writer.py",
        "        if self._outdated():\n",
        "        if False:\n",
        (_SENT,),
    ),
    Mutant(
        "what had no room overtakes",
        "pidlease/kafka/client/socket_writer.py",
        "        if not self._unsent:\n            try:\n",
        "        if True:\n            try:\n",
        (_LINKED,),
    ),
    Mutant(
        "bytes go past TLS",
        _LINK,
        '        if transport.get_extra_info("ssl_object") is None:\n',
        "        if True:\n",
        (_LINKED,),
    ),
    Mutant(
        "a connection that could not be made is not tried again",
        _CHANNELS,
        "        finally:\n            self._connecting = None\n        self._schedule()",
        "        finally:\n            pass\n        self._schedule()",
        (_SENT,),
    ),
    Mutant(
        "a producer keeps its connection for ever",
        _CHANNELS,
        "        if not self.producers[producer]:\n            del",
        "        if self.producers[producer] < 0:\n            del",
        (_SENT,),
    ),
    Mutant(
        "replicas have milliseconds for seconds",
        _CHANNELS,
        "int(cluster.config.request_seconds * 1000 * _REPLICAS_PART)",
        "int(cluster.config.request_seconds * _REPLICAS_PART)",
        (_SENT,),
    ),
    Mutant(
        "without a producer batches stay with the old leader",
        _CHANNELS,
        "goes to the new leader.\n            self._end(route)\n",
        "goes to the new leader.\n            pass\n",
        (_SENT,),
    ),
    Mutant(
        "transactions share a request",
        _CHANNELS,
        "                or send.transactional_id != first.transactional_id\n",
        "",
        (_SENT,),
    ),
    Mutant(
        "what is behind a failed batch is held off for milliseconds",
        "pidlease/engine/appenders/failed_batches.py",
        "FAILED_HOLD_MS: Final = 120_000",
        "FAILED_HOLD_MS: Final = 120",
        ("tests/unit/engine/test_partition.py",),
    ),
    Mutant(
        "a writer is used for a thousand times its time",
        _WRITING,
        "self._taken_ms < self._log.writer_ms\n",
        "self._taken_ms < self._log.writer_ms * 1000\n",
        (f"{_SIM}::test_a_writer_is_taken_again_when_its_time_is_up",),
    ),
    Mutant(
        "a writer's numbers wrap",
        _WRITING,
        "            and self._sequence < _SEQUENCE_MAX\n",
        "            and self._sequence >= 0\n",
        (f"{_SIM}::test_a_writer_is_taken_again_before_its_numbers_wrap",),
    ),
    Mutant(
        "it is asked once who owns a partition",
        _LANES,
        "            self._asked_ms = now_ms\n",
        "            self._asked_ms = now_ms + 3_600_000\n",
        (f"{_SIM}::test_it_is_asked_again_who_owns_the_partition",),
    ),
    Mutant(
        "doubts that are over are not ended",
        _LANES,
        "        self._catch_up.begin()\n        return True",
        "        return True",
        (f"{_SIM}::test_doubts_end_when_nothing_can_come_any_more",),
    ),
    Mutant(
        "who waits for a look at the cluster is told before it",
        _CLUSTER,
        "lambda: self._ended >= wanted",
        "lambda: self._ended >= wanted - 1",
        (_LOOKED,),
    ),
    Mutant(
        "a look at the cluster that failed is not made again",
        _CLUSTER,
        "                self._stale.set()\n                unchanged",
        "                unchanged",
        (_LOOKED,),
    ),
    Mutant(
        "a broker that has moved is not followed",
        _CLIENT_LINKS,
        " or connection.address != address",
        "",
        (_LOOKED,),
    ),
    Mutant(
        "a client that has gone keeps its connections",
        _CLIENT_LINKS,
        "self._brokers.pop(connection, None)",
        "self._brokers.get(connection)",
        (_LOOKED,),
    ),
    Mutant(
        "the end of the log is the last record's offset",
        _KAFKA_LOG,
        "offset + new.header.records)",
        "offset + new.header.records - 1)",
        (_READ,),
    ),
    Mutant(
        "a leader that cannot be reached is asked again and again",
        _KAFKA_LOG,
        "            self._upstream.stale()\n            self._log_retry(reason)\n"
        "            await asyncio.sleep(_BACKOFF.seconds(attempt))\n"
        '        raise KafkaUnreadableError(f"{self._place} cannot be read',
        "            self._log_retry(reason)\n"
        "            await asyncio.sleep(_BACKOFF.seconds(attempt))\n"
        '        raise KafkaUnreadableError(f"{self._place} cannot be read',
        (_READ,),
    ),
    Mutant(
        "what failed while it waited is held against what comes later",
        "pidlease/engine/appenders/catch_up.py",
        "            _count_down(self._failed, producer)\n",
        "",
        ("tests/unit/engine/test_catch_up.py",),
    ),
    Mutant(
        "what has landed of a producer that is gone is kept",
        _LANES,
        "        self._acknowledged.discard(pid)\n",
        "        pass\n",
        (f"{_SIM}::test_nothing_is_kept_of_a_producer_that_is_gone",),
    ),
)

"""A broken client: what is not reported, and duplicates that are none."""

from typing import Final

from tests.mutants.mutant import Mutant

_PARTITION: Final = "pidlease/client/partition_queue.py"
_PIPELINE: Final = "pidlease/client/pipeline.py"
_BLOCKING: Final = "pidlease/client/blocking_producer.py"
_UNSEEN: Final = ("tests/client/test_unseen_failures.py",)
_REPEATED: Final = ("tests/client/test_repeated_ids.py",)
_LEADERS: Final = "pidlease/client/leader_connections.py"
_METADATA: Final = "pidlease/kafka/client/cluster.py"
_CLI: Final = "tests/integration/test_cli_produce_consume.py"
_SENT: Final = ("tests/client/test_sending.py",)

CLIENT: Final = (
    Mutant(
        "a line that an earlier run skipped counts as stored",
        "proxy/cli/produce_command.py",
        "        check_record(record.value, record.key, headers, record.timestamp_ms, None,"
        " self._bytes_max)\n",
        "",
        (f"{_CLI}::test_a_line_that_was_skipped_is_skipped_again",),
    ),
    Mutant(
        "a full stdout ends a command with 0",
        "proxy/cli/standard_streams.py",
        "        if raw.problem:\n",
        "        if raw.closed:\n",
        (f"{_CLI}::test_a_full_and_a_closed_stdout_cost_one_line",),
        server=True,
    ),
    Mutant(
        "a producer sends to Kafka itself under leased PIDs",
        "pidlease/kafka/client/bootstrap.py",
        "    if FEATURE not in names:\n",
        "    if not FEATURE:\n",
        ("tests/client/test_one_pidlease.py",),
    ),
    Mutant(
        "a producer sends under the leases of another cluster",
        "pidlease/client/lease_client.py",
        "            if of and self.cluster_id and of != self.cluster_id:\n",
        "            if not of:\n",
        ("tests/client/test_one_pidlease.py",),
    ),
    Mutant(
        "a program that lost records at its end says nothing",
        _BLOCKING,
        "        elif (error := self._unseen.take()) is not None:\n            report_lost(",
        "        elif (error := self._unseen.take()) is not None:\n            str(",
        ("tests/client/test_unstopped.py",),
        server=True,
    ),
    Mutant(
        "no name is resolved at the end of a program",
        _BLOCKING,
        "        except RuntimeError:\n            future: Future[_T] = Future()\n",
        "        except KeyError:\n            future: Future[_T] = Future()\n",
        ("tests/client/test_unstopped.py",),
        server=True,
    ),
    Mutant(
        "a producer is collected with its records, and says nothing",
        _PIPELINE,
        "        if self.process == os.getpid():\n            self._abandoned()\n",
        "",
        ("tests/client/test_unstopped.py",),
        server=True,
    ),
    Mutant(
        "a web service starts with a database that has lost orders",
        "examples/web_service.py",
        "        if last > highest:\n",
        "        if last < highest < 0:\n",
        ("tests/examples/test_web_service.py::test_a_database_that_lacks_numbers_is_refused",),
        server=True,
    ),
    Mutant(
        "a partition without a lease is asked for before all others",
        "pidlease/client/pid_session.py",
        "        self._wanted.pop(partition, None)\n"
        "        if isinstance(answer, LeaseUnavailableError):\n"
        "            self._wanted[partition] = None  # after the others\n",
        "        if isinstance(answer, LeaseUnavailableError):\n",
        ("tests/client/test_session.py",),
    ),
    Mutant(
        "a name that is refused again and again is asked for without rests",
        "pidlease/client/pid_session.py",
        "                await asyncio.sleep(self._host.backoff(failures))\n",
        "                pass\n",
        ("tests/client/test_renewals.py",),
    ),
    Mutant(
        "a sender overtakes those that wait for the metadata",
        _PIPELINE,
        "                await asyncio.shield(before)\n",
        "",
        ("tests/client/test_review.py",),
    ),
    Mutant(
        "the topic of a partition is not looked up",
        _LEADERS,
        "        self.cluster.topics.add(partition.topic)\n",
        "",
        _SENT,
    ),
    Mutant(
        "all topics are looked up",
        _METADATA,
        "await self._view_of(connection, self.topics - new)",
        "await self._view_of(connection, None)",
        _SENT,
    ),
    Mutant(
        "a refresh creates deleted topics",
        _METADATA,
        "await self._view_of(connection, self.topics - new)",
        "await self._view_of(connection, self.topics - new, create=True)",
        ("tests/client/test_topics_in_use.py",),
    ),
    Mutant(
        "a defect in the handling of a response goes unnoticed",
        "pidlease/client/batch_sender.py",
        "            self._host.broken(error)\n",
        "            del error\n",
        _SENT,
    ),
    Mutant(
        "a late response is looked for once a second",
        "pidlease/kafka/client/broker_connection.py",
        "        seconds = min(_WATCH_SECONDS, self._seconds)\n",
        "        seconds = _WATCH_SECONDS\n",
        _SENT,
    ),
    Mutant(
        "flush reports no failed records",
        _PIPELINE,
        "        if (error := unseen.take()) is not None:\n            raise error\n",
        "",
        _UNSEEN,
    ),
    Mutant(
        "flush reports what was looked at",
        _PIPELINE,
        "    return not future._log_traceback\n",
        "    return False\n",
        _UNSEEN,
    ),
    Mutant(
        "the end of the block masks the user's exception",
        "pidlease/client/producer.py",
        "        if error is None and failed is not None:\n",
        "        if failed is not None:\n",
        _UNSEEN,
    ),
    Mutant(
        "failures beyond the limit are forgotten",
        "pidlease/client/failure_report.py",
        "                self._forgotten[type(error)] += 1\n",
        "                self._forgotten[type(error)] |= 1\n",
        _UNSEEN,
    ),
    Mutant(
        "a wait that timed out has looked at the future",
        _BLOCKING,
        "            self.looked_at = False\n            raise\n",
        "            raise\n",
        _UNSEEN,
    ),
    Mutant(
        "the blocking producer's loop finds what is wrong with a call",
        _BLOCKING,
        """            data, key_data, headers, _ = check_record(
                value, key, headers, timestamp_ms, sequence_id, self._record_bytes_max
            )
""",
        "            data, key_data = value, key\n",
        _UNSEEN,
    ),
    Mutant(
        "records pass one that was not taken",
        _BLOCKING,
        '            if options.get("sequence_id") is not None or self._numbers_matter():\n',
        "            if self._process < 0:\n",
        _UNSEEN,
    ),
    Mutant(
        "a duplicate does not wait for what it repeats",
        _PARTITION,
        "        batch = self._last_batch\n        if batch is None:\n",
        "        batch = self._last_batch\n        if batch is None or batch.span is not None:\n",
        _REPEATED,
    ),
    Mutant(
        "a duplicate of what has failed is a success",
        _PARTITION,
        "            if error is None or number <= self._completed_last:\n",
        "            if error is None or number <= self._sent_last:\n",
        _REPEATED,
    ),
    Mutant(
        "a duplicate of what was sent is said to be unsent",
        _PARTITION,
        "            elif number < min(batch.ids[0], self._sent_last + 1)"
        " and type(error) is not FencedError:\n",
        "            elif number < 0:\n",
        _REPEATED,
    ),
    Mutant(
        "a record joins the batch before a duplicate",
        _PARTITION,
        "            self.close_open()\n"
        "            self._host.filled(self)\n"
        "        return future\n",
        "            self._host.filled(self)\n        return future\n",
        _REPEATED,
    ),
    Mutant(
        "a batch does not cover the number of a refused record",
        "pidlease/client/sequence_numbers.py",
        "        first = number if gaps else min(self.first, number)\n",
        "        first = number\n",
        ("tests/client/test_recipe.py",),
    ),
    Mutant(
        "policy strict takes an id that does not rise",
        _PARTITION,
        "self._ids.check(sequence_id, repeats=self._settings.monotonic)",
        "self._ids.check(sequence_id, repeats=True)",
        (*_REPEATED, "tests/client/test_monotonic.py"),
    ),
)

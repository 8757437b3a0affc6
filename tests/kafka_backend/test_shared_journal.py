"""The coordinator's rows in a real Kafka, for several active servers.

The requests between the servers go by a function of the test, which can lose them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from itertools import count
from typing import Any

import pytest

from pidlease.coordination.journal.journal import (
    JournalConflictError,
    JournalError,
    NotRegistrarError,
    Row,
)
from pidlease.coordination.journal.journal_members import JournalMembers
from pidlease.coordination.journal.journal_sequence import JournalSequence
from pidlease.coordination.journal.put_request import PutRequest
from pidlease.coordination.ownership import OwnershipError
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.backoff import Backoff
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.log.kafka import kafka_shared_journal
from pidlease.log.kafka.kafka_journal import KafkaJournal
from pidlease.log.kafka.kafka_shared_journal import (
    TICK_SECONDS,
    RegistrarAwayError,
    RegistrarGoneError,
    SharedKafkaJournal,
)
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.served_topic import delete_served_topic, is_served
from tests.kafka_backend.test_kafka_journal import Lossy
from tests.servers.kafka import KafkaServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S
from tests.unit.coordination.test_journal_members import member

pytestmark = [needs_kafka, pytest.mark.kafka]

_STEPS = 3_000 if SOAK else 120
_SESSION_S = 2.0
NOW_MS = 1_700_000_000_000


class Servers:
    """Journals of several servers, by address."""

    def __init__(self, kafka: KafkaServer) -> None:
        host, port = kafka.bootstrap.rsplit(":", 1)
        self.config = UpstreamConfig(bootstrap=((host, int(port)),))
        self.journals: dict[str, SharedKafkaJournal] = {}
        #: Servers where nothing listens.
        self.gone: set[str] = set()
        #: Servers that cannot be reached; what is sent to them waits.
        self.silent: set[str] = set()
        #: What becomes of the next request: "request" or "response" is lost; empty: nothing.
        self.lose = ""
        self.lost: list[str] = []
        self.asked: list[str] = []

    async def add(self, stack: AsyncExitStack, name: str) -> SharedKafkaJournal:
        upstream = Lossy(self.config)
        stack.push_async_callback(upstream.close)
        await upstream.start()
        found = SharedKafkaJournal(upstream, name, lambda: NOW_MS, name, _SESSION_S, self.ask)
        stack.push_async_callback(found.release)
        self.journals[name] = found
        return found

    async def ask(self, url: str, body: bytes) -> tuple[int, str]:
        self.asked.append(url)
        if url in self.gone:
            raise RegistrarGoneError(f"nothing listens at {url}")
        if url in self.silent:
            await asyncio.sleep(WAIT_S)
        lost, self.lose = self.lose, ""
        self.lost += filter(None, [lost])
        if lost == "request":
            raise RegistrarAwayError("the request was lost")
        status, text = await answer(self.journals[url], body)
        if lost == "response":
            raise RegistrarAwayError("the response was lost")
        return status, text


async def answer(journal: SharedKafkaJournal, body: bytes) -> tuple[int, str]:
    """What the route of the registrar's server responds."""
    try:
        await journal.serve(PutRequest.model_validate_json(body))
    except NotRegistrarError as error:
        return HTTPStatus.MISDIRECTED_REQUEST, str(error)
    except JournalConflictError as error:
        return HTTPStatus.CONFLICT, str(error)
    except JournalError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    return HTTPStatus.NO_CONTENT, ""


@asynccontextmanager
async def servers(
    kafka: KafkaServer, *names: str
) -> AsyncIterator[tuple[Servers, list[SharedKafkaJournal]]]:
    async with AsyncExitStack() as stack:
        found = Servers(kafka)
        journals = []
        for name in names:
            journals.append(await found.add(stack, name))
            assert await asyncio.to_thread(journals[-1].claim) == ""
        yield found, journals


async def put(
    journal: SharedKafkaJournal, value: object, *, before: object = ..., name: str = "one"
) -> None:
    def row(value: object) -> Row:
        return Row("t", name, None if value is None else {"value": value})

    expected = [] if before is ... else [row(before)]
    await asyncio.to_thread(journal.put, [row(value)], expected)


async def value(journal: SharedKafkaJournal, name: str = "one") -> object:
    await asyncio.to_thread(journal.refresh)
    return (journal.get("t", name) or {}).get("value")


async def until_registrar(journal: SharedKafkaJournal) -> None:
    async with asyncio.timeout(WAIT_S):
        while not journal.is_registrar:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(autouse=True)
def _without_the_topic(kafka: KafkaServer) -> None:
    if is_served(kafka):
        delete_served_topic(kafka)


async def test_each_server_puts_and_reads(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b", "c") as (all_, (a, b, c)):
        assert [each.is_registrar for each in (a, b, c)] == [True, False, False]
        assert [each.first_service for each in (a, b, c)] == [True, False, False]
        await put(a, 1)
        assert await value(b) == 1
        await put(b, 2, before=1)
        assert await value(c) == 2
        assert await value(a) == 2
        with pytest.raises(JournalConflictError):
            await put(c, 3, before=1)
        with pytest.raises(JournalConflictError):
            await put(a, 3, before=None)
        await put(c, None, before=2)
        assert await value(a) is None
        assert set(all_.asked) == {"a"}


async def test_what_other_calls_have_read_is_news_too(kafka: KafkaServer) -> None:
    """Once a bug: servers that read often took the registrar for silent, and replaced it."""
    async with servers(kafka, "a", "b") as (_, (a, b)):
        for task in b._tasks:
            task.cancel()
        for number in range(12):
            await put(a, number)
            assert await value(b) == number
            await b._look()
            assert b._silent_looks == 0


async def test_numbers_follow_each_other_at_all_servers(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (_, journals):
        # Once a bug: all rows of one put had the same number.
        rows = [Row("m", "+", {"at": 1}), Row("n", "+", {"by": 20}), Row("m", "+", {"at": 2})]
        await asyncio.to_thread(journals[1].put, rows)
        await asyncio.to_thread(journals[0].refresh)
        assert journals[0].above("m", 0) == [(1, {"at": 1}), (2, {"at": 2})]
        await asyncio.gather(*(
            asyncio.to_thread(journals[number % 2].put, [Row("n", "+", {"by": number})])
            for number in range(20)
        ))  # fmt: skip
        for each in journals:
            await asyncio.to_thread(each.refresh)
            found = each.above("n", 0)
            assert [number for number, _ in found] == list(range(1, 22))
            assert {fields["by"] for _, fields in found} == set(range(21))
            assert each.above("n", 18) == found[18:]


@pytest.mark.parametrize("pause_s", [None, 0.8])
async def test_where_nothing_listens_another_server_takes_over_at_once(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, pause_s: float | None
) -> None:
    """Also where the registrar puts its row again between any two attempts to reach it."""
    monkeypatch.setattr(SharedKafkaJournal, "_watch_registrar", _nothing)  # not by silence
    if pause_s is not None:
        monkeypatch.setattr(kafka_shared_journal, "BACKOFF", Backoff(pause_s, pause_s))
    async with servers(kafka, "a", "b", "c") as (all_, (a, b, _)):
        await put(b, 1)
        all_.gone.add("a")
        await put(b, 2, before=1)
        assert b.is_registrar
        # The former one has not noticed; Kafka rejects what it sends, and it asks the new one.
        await put(a, 3, before=2)
        assert not a.is_registrar
        assert await value(b) == 3


async def test_a_registrar_that_answers_no_pings_and_puts_its_row_is_replaced(
    kafka: KafkaServer,
) -> None:
    """Once it ended the sessions of all others, which did not reach it, and owned everything."""
    async with servers(kafka, "a", "b") as (all_, (a, b)):
        await put(b, 1)
        all_.silent.add("a")
        b.is_silent = lambda url: url == "a"
        await put(b, 2, before=1)
        assert b.is_registrar
        await put(a, 3, before=2)
        assert (a.is_registrar, b.is_registrar) == (False, True)
        # It does not replace the other one in turn, while that puts its row.
        a.is_silent = lambda url: url == "b"
        while a._unanswered < 2 * kafka_shared_journal._UNREACHED_TICKS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (a.is_registrar, b.is_registrar) == (False, True)


async def test_servers_that_have_replaced_each_other_do_not_go_on_with_it(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each did so twice a second, for ever, because it had done it once."""
    monkeypatch.setattr(kafka_shared_journal, "_DISTRUST_SECONDS", 0.0)
    async with servers(kafka, "a", "b") as (_, (a, b)):
        for now, former in ((b, a), (a, b)):
            now.is_silent = lambda _: True
            await until_registrar(now)
            now.is_silent = lambda _: False
            await put(former, 1)
        for number in range(20):
            await put(b, number)
            await b._look()
            assert (a.is_registrar, b.is_registrar) == (True, False)
            await asyncio.sleep(TICK_SECONDS / 5)


async def test_one_that_was_found_unreachable_may_serve_again(kafka: KafkaServer) -> None:
    """Also one that another server than the one that missed it has replaced."""
    async with servers(kafka, "a", "b", "c") as (_, (a, b, c)):
        await put(b, 1)
        b._unreachable = a._run
        async with c._lock:
            c._unreachable = a._run
            await c._become()
        while b._unreachable:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (a.is_registrar, b.is_registrar, c.is_registrar) == (False, False, True)


async def test_a_server_that_reaches_few_others_does_not_take_over(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (_, (a, b)):
        b.abstains = lambda: True
        b.is_silent = lambda _: True
        while b._unanswered < 2 * kafka_shared_journal._UNREACHED_TICKS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (a.is_registrar, b.is_registrar) == (True, False)
        b.abstains = lambda: False
        await until_registrar(b)


async def _nothing(_: SharedKafkaJournal) -> None:
    """Look at nothing."""


@pytest.mark.parametrize("pinged", [False, True])
async def test_a_silent_registrar_is_replaced_and_follows(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, *, pinged: bool
) -> None:
    monkeypatch.setattr(kafka_shared_journal, "_SILENT_TICKS", 10_000 if pinged else 3)
    async with servers(kafka, "a", "b") as (all_, (a, b)):
        await put(b, 1)
        b.is_silent = lambda url: pinged and url == "a"
        all_.silent.add("a")
        async with a._lock:  # as if it were suspended
            began = time.monotonic()
            await put(
                b, 2, before=1
            )  # waits for an answer, until the registrar is known to be gone
            seconds = time.monotonic() - began
            print(f"replaced within {seconds:.1f} s")
            assert b.is_registrar
        with pytest.raises(JournalConflictError):
            await put(a, 3, before=1)
        await put(a, 3, before=2)
        assert (a.is_registrar, b.is_registrar) == (False, True)


async def test_a_registrar_that_lives_but_is_not_reached_stays(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers that take over from each other again and again would help no one."""
    async with servers(kafka, "a", "b") as (all_, (a, b)):
        all_.gone.add("a")
        await put(b, 1)
        assert b.is_registrar
        await put(a, 2, before=1)
        # Now the former one does not reach the new one, which goes on to show itself.
        all_.gone.add("b")
        monkeypatch.setattr(kafka_shared_journal, "SECONDS", 0.5)
        monkeypatch.setattr(kafka_shared_journal, "_REFUSED_SECONDS", 0.0)
        monkeypatch.setattr(kafka_shared_journal, "_SPREAD_SECONDS", 0.0)
        for _ in range(5):
            with pytest.raises(JournalError, match="nothing listens at b"):
                await put(a, 3, before=2)
            assert b.is_registrar
        await put(b, 4, before=2)
        assert await value(a) == 4


@pytest.mark.parametrize("lost", ["request", "response"])
async def test_a_lost_request_is_repeated_if_it_expects_something(
    kafka: KafkaServer, lost: str
) -> None:
    async with servers(kafka, "a", "b") as (all_, (_, b)):
        await put(b, 1)
        b._tasks.pop().cancel()  # it shows itself no more: its requests are the test's
        all_.lose = lost
        if lost == "request":
            await put(b, 2, before=1)
        else:
            with pytest.raises(JournalConflictError):
                await put(b, 2, before=1)
        assert all_.lost == [lost]
        assert await value(b) == 2
        all_.lose = lost
        with pytest.raises(JournalError, match="was lost"):
            await put(b, 3)
        assert await value(b) == (2 if lost == "request" else 3)


@pytest.mark.parametrize("lost", ["batch", "response"])
async def test_the_registrars_own_unknown_outcome_is_settled(kafka: KafkaServer, lost: str) -> None:
    async with servers(kafka, "a", "b") as (_, (a, b)):
        await put(a, 1)
        upstream: Any = a._upstream
        before = len(upstream.lost)
        async with a._lock:
            upstream.lose = lost
            await a._try_to_put(
                lambda: [Row("t", "one", {"value": 2})], [Row("t", "one", {"value": 1})]
            )
        assert len(upstream.lost) == before + 1
        assert await value(b) == 2


async def test_a_put_that_landed_before_another_server_took_over_was_made(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers(kafka, "a", "b") as (all_, (a, b)):
        await put(a, 1)
        settle = a._settle
        taken: list[bool] = []

        async def late() -> None:
            if a._landed is False and a._doubtful is not None and not taken:
                taken.append(True)
                all_.gone.add("a")
                await put(b, "b", name="two")
            await settle()

        upstream: Any = a._upstream
        async with a._lock:
            upstream.lose = "response"
            monkeypatch.setattr(a, "_settle", late)
            await a._try_to_put(lambda: [Row("t", "one", {"value": 2})], [])
        assert taken
        assert b.is_registrar
        assert await value(b) == 2


async def test_rows_of_a_session_end_with_it(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b", "c") as (_, (a, b, c)):
        members = [JournalMembers(each, lambda: "") for each in (a, b, c)]
        for number, each in enumerate(members, 1):
            await asyncio.to_thread(each.join, member(number))
        _cancel(c)
        assert sorted((await asyncio.to_thread(members[1].read)).members) == [1, 2, 3]
        async with asyncio.timeout(WAIT_S):
            while 3 in (await asyncio.to_thread(members[1].read)).members:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        # Those that show themselves stay, also with another registrar.
        await a.release()
        await until_registrar(b)
        await asyncio.sleep(2 * _SESSION_S)
        found = await asyncio.to_thread(members[1].read)
        assert sorted(found.members) == [2]
        # The one that was silent joins again as soon as it reads.
        assert sorted((await asyncio.to_thread(members[2].read)).members) == [2, 3]


async def test_a_registrar_that_stops_is_replaced_at_once(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedKafkaJournal, "_watch_registrar", _nothing)
    async with servers(kafka, "a", "b") as (_, (a, b)):
        await put(a, 1)
        await a.release()
        with pytest.raises(JournalError, match="stops"):
            await put(a, 2)
        await put(b, 2, before=1)
        assert b.is_registrar


async def test_a_request_for_another_process_is_refused(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (_, (a, b)):
        rows = [Row("t", "one", {"value": 1})]
        for journal, run in ((a, "0" * 32), (b, a._run), (b, b._run)):
            with pytest.raises(NotRegistrarError):
                await journal.serve(PutRequest(run=run, session="s", rows=rows))
        assert await value(a) is None
        await a.serve(PutRequest(run=a._run, session="s", rows=rows))
        assert await value(a) == 1


async def test_several_servers_and_one_alone_keep_each_other_out(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers(kafka, "a", "b") as (all_, (a, b)), AsyncExitStack() as stack:
        upstream = Lossy(all_.config)
        stack.push_async_callback(upstream.close)
        await upstream.start()
        alone = KafkaJournal(upstream, "alone:1", "folder", lambda: NOW_MS)
        await put(a, 1)
        for _ in range(3):
            assert await asyncio.to_thread(alone.claim) == "several"
            await put(b, 1)
        await b.release()
        await a.release()
        assert await asyncio.to_thread(alone.claim) == ""
        assert await asyncio.to_thread(alone.still)
        late = await all_.add(stack, "late")
        assert await asyncio.to_thread(late.claim) == "alone:1"
        assert late.stranger == "alone:1"
        with pytest.raises(JournalError, match="alone:1 serves this cluster without --shared"):
            await put(late, 2)
        monkeypatch.setattr(kafka_shared_journal, "SILENT_LOOKS", 2)
        async with asyncio.timeout(WAIT_S):
            while await asyncio.to_thread(late.claim):
                pass
        assert late.is_registrar
        assert not await asyncio.to_thread(alone.still)
        assert await value(late) == 1


def _cancel(journal: SharedKafkaJournal) -> None:
    for task in journal._tasks:
        task.cancel()


async def test_random_histories(kafka: KafkaServer) -> None:
    """Servers count together, and take PIDs, while requests, batches and servers get lost.

    No number is counted twice, no block is taken twice, and what was acknowledged stays.
    """
    random = new_random("shared-journal")
    counted: list[int] = []
    taken: list[int] = []
    errors = changes = 0
    async with AsyncExitStack() as stack:
        all_ = Servers(kafka)
        names = count()
        alive: list[SharedKafkaJournal] = []
        blocks: dict[SharedKafkaJournal, JournalSequence] = {}

        async def add() -> None:
            journal = await all_.add(stack, f"s{next(names)}")
            async with asyncio.timeout(WAIT_S):
                while True:
                    with suppress(OwnershipError):
                        if not await asyncio.to_thread(journal.claim):
                            break
            alive.append(journal)
            blocks[journal] = JournalSequence(journal, journal._url, lambda: NOW_MS, 1 << 60)

        async def step(journal: SharedKafkaJournal) -> None:
            if random.random() < 0.3:
                taken.append((await asyncio.to_thread(blocks[journal].take)).first)
                return
            before = await value(journal, "counter")
            after = 1 if before is None else int(str(before)) + 1
            await put(journal, after, before=before, name="counter")
            counted.append(after)

        for _ in range(3):
            await add()
        registrar = None
        for number in range(_STEPS):
            some = random.sample(alive, random.randrange(1, 4))
            all_.lose = random.choice(["", "", "", "request", "response"])
            lossy: Any = random.choice(alive)._upstream
            lossy.lose = random.choice(["", "", "", "batch", "response"])
            if random.random() < 0.05 and not all_.silent:
                # Suspended; what it does in its steps is what it was about to do.
                victim = random.choice(alive)
                all_.silent.add(victim._url)
                _cancel(victim)
            found = await asyncio.gather(*map(step, some), return_exceptions=True)
            for each in found:
                if isinstance(each, JournalError | JournalConflictError | SequenceError):
                    errors += 1
                elif each is not None:
                    raise each
            if random.random() < 0.2 and all_.silent:
                resumed = all_.journals[all_.silent.pop()]
                if resumed in alive:
                    resumed._tasks = [
                        asyncio.create_task(resumed._run_on(resumed._show)),
                        asyncio.create_task(resumed._run_on(resumed._watch_registrar)),
                    ]
            keeping = [each for each in alive if each.is_registrar]
            if random.random() < 0.03 or (keeping and number == _STEPS // 2):
                victim = random.choice(keeping if number == _STEPS // 2 else alive)
                killed = alive.pop(alive.index(victim))
                _cancel(killed)
                all_.gone.add(killed._url)
                await add()
            now = next((each._url for each in alive if each.is_registrar), registrar)
            changes += now != registrar
            registrar = now
        all_.silent.clear()
        last = alive[0]
        total = await value(last, "counter")
        found_blocks = await asyncio.to_thread(blocks[last].blocks)
    lost = len(all_.lost)
    print(f"{len(counted)} counted to {total}, {len(taken)} blocks, {lost} requests lost,"
          f" {changes} registrars, {errors} errors")  # fmt: skip
    assert len(set(counted)) == len(counted)
    assert counted
    assert max(counted) <= int(str(total))
    assert len(set(taken)) == len(taken)
    assert {each.first for each in found_blocks} >= set(taken)
    assert lost
    assert changes > 1

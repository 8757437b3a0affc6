"""When the cluster is looked at again; and a client's connections, which follow its brokers."""

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from pidlease.core.backoff import Backoff
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.errors import UpstreamAwayError, UpstreamRefusedError
from proxy.kafka.client_connection import KafkaConnection
from proxy.kafka.forwarded import client_brokers as links
from proxy.kafka.forwarded.client_brokers import BrokersOfClients, ClientBrokers
from tests.servers.waiting import WAIT_S

_SECONDS = WAIT_S
_HOUR = 3600.0
HEADER = RequestHeader(11, 9, 1, "client", 0)


class Looked:
    """A cluster whose looks are counted, and fail as often as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = UpstreamConfig((), metadata_seconds=_HOUR, refresh_backoff=Backoff(0.01, 2.0))
        self.cluster = Cluster(config)
        self.looks = self.failures = 0
        self.looked = asyncio.Event()
        monkeypatch.setattr(self.cluster, "_load", self._load)

    async def _load(self) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise UpstreamAwayError("nobody answers")
        self.looks += 1
        self.looked.set()


async def test_a_look_that_somebody_waits_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    await looked.cluster.start()
    try:
        for number in (2, 3):
            async with asyncio.timeout(_SECONDS):
                await looked.cluster.refresh()
            assert looked.looks == number
    finally:
        await looked.cluster.close()


async def test_a_look_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when it would be time for the next one anyway."""
    looked = Looked(monkeypatch)
    await looked.cluster.start()
    try:
        looked.failures = 2
        looked.looked.clear()
        looked.cluster.stale()
        async with asyncio.timeout(_SECONDS):
            await looked.looked.wait()
        assert not looked.failures
    finally:
        await looked.cluster.close()


@dataclass
class FakeLink:
    """A connection to an address."""

    address: tuple[str, int]
    versions: dict[int, tuple[int, int]]
    open: bool = True

    def close(self) -> None:
        self.open = False


class Brokers:
    """One broker, which may move."""

    config = None

    def __init__(self) -> None:
        self.port = 1
        self.versions = {HEADER.api_key: (0, HEADER.version)}

    def address(self, _: int) -> tuple[str, int]:
        return "broker", self.port


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()

    async def connect(_: None, address: tuple[str, int]) -> FakeLink:
        return FakeLink(address, found.versions)

    monkeypatch.setattr(links, "connect", connect)
    return found


async def test_a_broker_that_moves_is_followed(brokers: Brokers) -> None:
    mine = ClientBrokers(cast(Cluster, brokers))
    first = await mine.connection(1, HEADER)
    assert await mine.connection(1, HEADER) is first
    polling = await mine.connection(1, HEADER, polling=True)
    assert polling is not first, "others do not wait behind a request that waits for records"
    brokers.port = 2
    second = await mine.connection(1, HEADER)
    assert second.address == ("broker", 2)
    assert not first.open
    second.close()
    assert (await mine.connection(1, HEADER)) is not second
    mine.close()
    assert not polling.open


async def test_no_request_goes_to_a_broker_that_does_not_know_its_version(brokers: Brokers) -> None:
    mine = ClientBrokers(cast(Cluster, brokers))
    link = await mine.connection(1, HEADER)
    brokers.versions = {HEADER.api_key: (0, HEADER.version - 1)}
    assert await mine.connection(1, HEADER) is link, "the same process serves the same versions"
    link.close()  # it was rolled back
    with pytest.raises(UpstreamRefusedError, match="ask for the versions again"):
        await mine.connection(1, HEADER)
    await mine.connection(1, HEADER._replace(version=HEADER.version - 1))


async def test_a_client_that_has_gone_leaves_nothing(brokers: Brokers) -> None:
    clients = BrokersOfClients(cast(Cluster, brokers))
    connection = cast(KafkaConnection, object())
    link = await clients.of(connection).connection(1, HEADER)
    clients.closed(connection)
    assert not link.open
    assert clients.of(connection)._connections == {}
    clients.closed(cast(KafkaConnection, object()))

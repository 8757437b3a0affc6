"""Both addresses of a producer are those of one pidlease; otherwise nothing is sent."""

import pytest

from pidlease.client import LeaseRefusedError, ProducerError
from tests.client.fake_broker import FakeBroker
from tests.client.harness import world
from tests.client.test_blocking import producer_of, served


@pytest.mark.parametrize("is_pidlease", [False, None])
async def test_a_broker_of_kafka_is_refused_at_the_start(is_pidlease: bool | None) -> None:
    async with world() as all_:
        all_.broker.is_pidlease = is_pidlease
        with pytest.raises(ProducerError) as caught:
            await all_.producer().start()
        wrong = f"Kafka at {all_.broker.bootstrap} is not pidlease: a record that is sent again"
        assert str(caught.value).startswith(wrong)
        assert not all_.broker.came


def test_the_blocking_producer_refuses_it_too() -> None:
    with served() as all_:
        all_.broker.is_pidlease = False
        with pytest.raises(ProducerError, match="is not pidlease"):
            producer_of(all_).start()
        assert not all_.broker.came


async def test_of_several_bootstrap_servers_only_pidlease_is_used() -> None:
    async with world() as all_, FakeBroker(all_.leases, {"t": 1}) as kafka:
        kafka.is_pidlease = False
        servers = [kafka.bootstrap, all_.broker.bootstrap]
        for _ in range(10):  # the order is random
            async with all_.producer(bootstrap_servers=servers) as producer:
                await producer.send_and_wait("t", b"x")
        assert kafka.connections
        assert not kafka.came
        assert len(all_.broker.came) == 10


async def test_a_leader_that_is_kafka_gets_no_batch() -> None:
    async with world(nodes=2) as all_:
        producer = all_.producer(delivery_timeout_ms=300)
        await producer.start()
        all_.broker.is_pidlease = False  # before the connection to the leader
        with pytest.raises(ProducerError, match=r"never sent.*is not pidlease"):
            await producer.send_and_wait("t", b"x")
        await producer.stop()
        assert not all_.broker.came


@pytest.mark.parametrize("name", [None, "n"])
async def test_leases_of_another_cluster_are_refused(name: str | None) -> None:
    async with world() as all_:
        all_.leases.cluster_id = "other"
        producer = all_.producer(name=name)
        await producer.start()
        with pytest.raises(LeaseRefusedError) as caught:
            await producer.send_and_wait("t", b"x")
        assert str(caught.value) == (
            f"{all_.leases.url} leases for cluster other, but the bootstrap servers are of cluster"
            " fake; give the HTTP port and the Kafka port of one pidlease"
        )
        with pytest.raises(LeaseRefusedError):
            await producer.send("t", b"y")
        await producer.stop()
        assert not all_.broker.came


async def test_leases_of_another_cluster_after_an_outage() -> None:
    async with world() as all_:
        all_.leases.away, all_.leases.cluster_id = 3, "other"
        async with all_.producer() as producer:
            with pytest.raises(LeaseRefusedError, match="cluster other"):
                await producer.send_and_wait("t", b"x")
        assert not all_.leases.away
        assert not all_.broker.came

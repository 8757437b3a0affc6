"""What a producer counts, as Prometheus sees it."""

from prometheus_client import CollectorRegistry, generate_latest

from pidlease.client import ProducerCollector
from tests.client.fake_broker import Fault
from tests.client.harness import world


async def test_a_scrape() -> None:
    async with world() as all_, all_.producer() as producer:
        registry = CollectorRegistry()
        registry.register(ProducerCollector(lambda: producer.metrics))
        all_.broker.fault = lambda n: Fault("refuse", 19) if n == 1 else None
        for _ in range(10):
            await producer.send("t", b"x" * 100)
        assert _value(registry, "pidlease_client_buffered_bytes") > 1000
        await producer.flush()
        assert _value(registry, "pidlease_client_records_total") == 10
        assert _value(registry, "pidlease_client_retries_total") == 1
        assert _value(registry, "pidlease_client_bytes_total") > 1000
        assert _value(registry, "pidlease_client_buffered_bytes") == 0
        assert registry.get_sample_value("pidlease_client_refusals_total", {"code": "19"}) == 1
        assert b"pidlease_client_switches_total 0.0" in generate_latest(registry)


def _value(registry: CollectorRegistry, name: str) -> float:
    value = registry.get_sample_value(name)
    assert value is not None, name
    return value

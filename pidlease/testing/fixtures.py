"""The fixtures of the pytest plugin."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pidlease.testing.killable_server import PidleaseServer


@pytest.fixture
def pidlease_settings() -> Mapping[str, str]:
    """Return the server's settings, PIDLEASE_... without the prefix; a test overrides this.

    Nothing is fsynced: a kill -9 loses nothing by that, only a power failure would.

    ```python
    import pytest

    @pytest.fixture
    def pidlease_settings():
        return {"fsync": "batch", "default_partitions": "1"}
    ```
    """
    return {"fsync": "never"}


@pytest.fixture
def pidlease_server(
    tmp_path: Path, pidlease_settings: Mapping[str, str]
) -> Iterator[PidleaseServer]:
    """Run a server during a test.

    ```python
    from pidlease.client import BlockingProducer

    def test_an_order_is_stored(pidlease_server):
        with BlockingProducer(
            bootstrap_servers=pidlease_server.bootstrap_servers, leases=pidlease_server.leases
        ) as producer:
            assert producer.send_and_wait("orders", b"tea").offset == 0
    ```
    """
    server = PidleaseServer(tmp_path / "pidlease", settings=pidlease_settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()

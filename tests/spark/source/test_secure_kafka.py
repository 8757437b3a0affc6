"""A Kafka with SASL_SSL and client certificates, by the names that Spark's own connector has."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.copier.sides import check_same
from tests.servers.authority import Authority, needs_openssl
from tests.servers.kafka import KafkaServer
from tests.servers.kafka.install import unavailable_reason
from tests.servers.pidlease import PidleaseServer
from tests.spark.sink.queries import Copying, fill
from tests.spark.source.test_kafka import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, needs_openssl]

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_PASSWORD = "it's a=b,c"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def store_of(authority: Authority, name: str, *addresses: str) -> str:
    """Return a PEM file with a key and its certificate."""
    own = authority.issue(name, *addresses)
    store = authority.folder / f"{name}-store.pem"
    store.write_text(own.key.read_text() + own.certificate.read_text())
    return str(store)


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka with one more listener, which asks for a certificate and a password."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    users = f'{_LOGIN} username="x" password="x" user_known="{_PASSWORD}";'
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store_of(authority, "broker", f"IP:{LOOPBACK}"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.root.certificate),
        "listener.name.secure.ssl.client.auth": "required",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": users,
    }
    folder = tmp_path_factory.mktemp("secure-kafka")
    with KafkaServer(folder, overrides=settings, listeners={"SECURE": "SASL_SSL"}) as kafka:
        yield kafka


def test_the_same_options_for_both_sources(
    spark: "SparkSession", secure: KafkaServer, authority: Authority, server: PidleaseServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Read by Spark's connector and by ours, and copied from by both."""
    fill(secure, "secured", 400)
    options = {
        "kafka.bootstrap.servers": secure.listeners["SECURE"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.root.certificate),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": store_of(authority, "client"),
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{_LOGIN} username="known" password="{_PASSWORD}";',
    }
    theirs = rows(spark, "kafka", secure, subscribe="secured", **options)
    assert len(theirs) == 400
    assert rows(spark, "pidlease", secure, subscribe="secured", **options) == theirs
    wrong = options | {"kafka.sasl.jaas.config": f'{_LOGIN} username="known" password="no";'}
    wrong["timeoutSeconds"] = "1"  # it is tried again for so long
    with pytest.raises(Exception, match="refuses user 'known'"):
        rows(spark, "pidlease", secure, subscribe="secured", **wrong)
    server.start()
    for kind in ("kafka", "pidlease"):
        copying = Copying(
            spark, secure, server, "secured", tmp_path / kind, {"topic": f"from-{kind}"}, options,
            kind,
        )  # fmt: skip
        copying.run()
        assert check_same(secure, "secured", server, f"from-{kind}") == 400

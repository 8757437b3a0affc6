"""The settings of several Kafka listeners: what they mean, and those that are refused."""

from pathlib import Path
from typing import Any

import pytest

from pidlease.storage.errors import DataFolderError
from proxy.configuration.component_configs import (
    advertised_listeners,
    check_exposure,
    listener_config,
    security_config,
)
from proxy.configuration.named_listeners import kafka_listeners, shown_kafka_listeners
from proxy.configuration.settings import Settings, SettingsError, load_settings
from proxy.kafka.admin.config_entries import server_settings
from proxy.security.security_config import ListenerSecurity
from proxy.workers.worker_settings import check_workers, worker_settings

_TWO = {
    "listeners": "INTERNAL://127.0.0.1:9092, external://[::1]:9093",
    "listener_security_protocol_map": "INTERNAL:PLAINTEXT,External:SASL_SSL",
}
_TLS = {"ssl_certificate": "c.pem", "ssl_key": "k.pem"}
_PLAIN = {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093", **_TLS}
_WORKERS = {"log": "kafka", "upstream": "k:9092", "shared": True, "workers": 3}


def _settings(**given: Any) -> Settings:
    return load_settings(None, given)


def test_names_addresses_and_protocols() -> None:
    settings = _settings(**_TWO, advertised_listeners="EXTERNAL://kafka.example.org:19093")
    assert [tuple(each) for each in kafka_listeners(settings)] == [
        ("INTERNAL", "127.0.0.1:9092", "127.0.0.1:9092", "PLAINTEXT"),
        ("EXTERNAL", "[::1]:9093", "kafka.example.org:19093", "SASL_SSL"),
    ]
    shown = "INTERNAL://127.0.0.1:9092,EXTERNAL://[::1]:9093"
    assert shown_kafka_listeners(settings) == shown
    cluster = listener_config(settings, "id").cluster
    assert (cluster.host, cluster.port) == ("127.0.0.1", 9092)
    assert cluster.addresses()["EXTERNAL"] == ("kafka.example.org", 19093)
    entry = server_settings(listener_config(settings, "id"))["advertised.listeners"]
    assert entry.value == "INTERNAL://127.0.0.1:9092,EXTERNAL://kafka.example.org:19093"


def test_each_has_its_own_security() -> None:
    found = security_config(_settings(**_TWO, **_TLS))
    assert found.of_kafka("INTERNAL") == found.of_kafka("") == ListenerSecurity()
    assert found.of_kafka("EXTERNAL") == ListenerSecurity(tls=True, login=True)
    assert not found.is_off
    assert found.kafka_login
    assert found.mechanisms
    assert found.tls_files is not None
    with pytest.raises(KeyError):
        found.of_kafka("OTHER")


def test_names_of_protocols_need_no_entry() -> None:
    assert [each.protocol for each in kafka_listeners(_settings(**_PLAIN))] == ["PLAINTEXT", "SSL"]


def test_without_them_there_is_one_without_a_name() -> None:
    settings = _settings(kafka_listen="127.0.0.1:1", kafka_advertise="h:2")
    assert [tuple(each) for each in kafka_listeners(settings)] == [
        ("", "127.0.0.1:1", "h:2", "PLAINTEXT")
    ]
    assert [tuple(each) for each in advertised_listeners(settings)] == [("", "h", 2)]
    assert listener_config(settings, "id").cluster.addresses() == {"": ("h", 2)}
    assert shown_kafka_listeners(settings) == "127.0.0.1:1"


@pytest.mark.parametrize(("given", "message"), [
    ({"advertised_listeners": "A://h:1"}, "--advertised-listeners needs --listeners"),
    ({"listener_security_protocol_map": "A:SSL"}, "--listener-security-protocol-map needs"),
    ({**_TWO, "kafka_listen": "127.0.0.1:9092"}, "--listeners replaces --kafka-listen; remove"),
    ({**_TWO, "kafka_advertise": "h:1"}, "--listeners replaces --kafka-advertise"),
    ({**_TWO, "kafka_security_protocol": "PLAINTEXT"}, "replaces --kafka-security-protocol"),
    ({**_TWO, "advertised_listeners": "OTHER://h:1"},
     "--advertised-listeners has OTHER, and --listeners has only INTERNAL, EXTERNAL; add it there"),
    ({**_TWO, "listener_security_protocol_map": "INTERNAL:SSL,EXTERNAL:SSL,OTHER:SSL"},
     "--listener-security-protocol-map has OTHER"),
    ({"listeners": "INTERNAL://127.0.0.1:1"}, "--listener-security-protocol-map INTERNAL:SASL_SSL"),
    ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1"},
     "PLAINTEXT and SSL both have port 1"),
    ({**_PLAIN, "listeners": "SSL://0.0.0.0:1"}, "0.0.0.0 is no address that a client can connect"),
    ({**_PLAIN, "listeners": "SSL://[::]:1"}, ":: is no address .*--advertised-listeners SSL://HOST"),
    ({**_PLAIN, "advertised_listeners": "SSL://0.0.0.0:5"}, "0.0.0.0 is no address"),
    ({**_PLAIN, "advertised_listeners": "SSL://127.0.0.1:9092"},
     "the clients of PLAINTEXT and SSL would both connect to 127.0.0.1:9092"),
    ({"listeners": "SSL://127.0.0.1:1"}, "--ssl-certificate and --ssl-key"),
    ({"listeners": "PLAINTEXT://192.0.2.1:9092"},
     "--listeners PLAINTEXT 192.0.2.1 is open .*--listener-security-protocol-map PLAINTEXT:SAS"),
    ({**_TWO, **_TLS, "listeners": "INTERNAL://192.0.2.1:1,EXTERNAL://192.0.2.1:2"},
     "--listeners INTERNAL 192.0.2.1 is open to other machines"),
    ({**_TWO, **_TLS, "listeners": "EXTERNAL://127.0.0.1:1,INTERNAL://192.0.2.1:2"},
     "--listeners INTERNAL 192.0.2.1 is open to other machines"),
    ({"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl_enabled_mechanisms": "PLAIN"},
     "in clear; it needs --listener-security-protocol-map SASL_PLAINTEXT:SASL_SSL"),
    ({"listeners": "SASL_SSL://127.0.0.1:2,SASL_PLAINTEXT://127.0.0.1:1", **_TLS,
      "sasl_enabled_mechanisms": "PLAIN"}, "in clear"),
    ({**_PLAIN, "http_listen": "127.0.0.1:9093"}, "--listeners SSL and --http-listen are both"),
    ({**_PLAIN, "metrics_listen": "127.0.0.1:9093"}, "--listeners SSL and --metrics-listen are"),
])  # fmt: skip
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFolderError, match=message):
        check_exposure(_settings(**given))


def test_only_those_with_logins_by_tls_may_listen_beyond_this_machine() -> None:
    beyond = {**_TWO, **_TLS, "listeners": "INTERNAL://127.0.0.1:1,EXTERNAL://192.0.2.1:2"}
    check_exposure(_settings(**beyond))
    every = {**beyond, "listeners": "INTERNAL://192.0.2.1:1,EXTERNAL://192.0.2.1:2"}
    check_exposure(_settings(**every, insecure=True))


@pytest.mark.parametrize(("given", "message"), [
    ("INTERNAL", "NAME://HOST:PORT"),
    ("127.0.0.1:9092", "NAME://HOST:PORT"),
    ("://127.0.0.1:9092", "NAME://HOST:PORT"),
    ("A B://127.0.0.1:9092", "NAME://HOST:PORT"),
    ("Ä://127.0.0.1:9092", "NAME://HOST:PORT"),
    (f"{'A' * 65}://127.0.0.1:9092", "NAME://HOST:PORT"),
    ("A://127.0.0.1:9092,", "NAME://HOST:PORT"),
    ("A://127.0.0.1", "HOST:PORT"),
    ("A://:9092", "HOST:PORT"),
    ("A://::1:9092", "in brackets"),
    ("A://127.0.0.1:0", "HOST:PORT"),
    ("A://127.0.0.1:65536", "HOST:PORT"),
    ("A://127.0.0.1:1,a://127.0.0.1:2", "A is there twice"),
    (",".join(f"L{number}://h:{number + 1}" for number in range(9)), "more than 8"),
])  # fmt: skip
def test_lists_that_are_none(given: str, message: str) -> None:
    for name in ("listeners", "advertised_listeners"):
        with pytest.raises(SettingsError, match=f"{name}: .*{message}"):
            _settings(**{name: given})


@pytest.mark.parametrize(("given", "message"), [
    ("A", "NAME:PROTOCOL"), ("A:", "NAME:PROTOCOL"), (":SSL", "NAME:PROTOCOL"),
    ("A:TLS", "'TLS' of A is none of PLAINTEXT, SSL"), ("A:ssl", "is none of"),
    ("A:SSL,a:SASL_SSL", "A is there twice"),
])  # fmt: skip
def test_maps_that_are_none(given: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _settings(listener_security_protocol_map=given)


def test_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has a variable for kafka_listen: it can be emptied, but not removed."""
    monkeypatch.setenv("PIDLEASE_LISTENERS", "PLAINTEXT://127.0.0.1:9092")
    monkeypatch.setenv("PIDLEASE_KAFKA_LISTEN", "0.0.0.0:9092")
    with pytest.raises(DataFolderError, match="in a container: PIDLEASE_KAFKA_LISTEN="):
        kafka_listeners(_settings())
    monkeypatch.setenv("PIDLEASE_KAFKA_LISTEN", "")
    assert kafka_listeners(_settings())[0].name == "PLAINTEXT"
    monkeypatch.delenv("PIDLEASE_LISTENERS")
    with pytest.raises(SettingsError, match=r"kafka_listen: .*HOST:PORT"):
        _settings()


def test_each_worker_has_ports_of_its_own(tmp_path: Path) -> None:
    settings = _settings(
        **_WORKERS, **_TWO, advertised_listeners="EXTERNAL://h:20000", data_dir=tmp_path,
        http_listen="127.0.0.1:8080",
    )  # fmt: skip
    third = worker_settings(settings, 3)
    assert [each[:3] for each in kafka_listeners(third)] == [
        ("INTERNAL", "127.0.0.1:9095", "127.0.0.1:9095"), ("EXTERNAL", "[::1]:9096", "h:20003"),
    ]  # fmt: skip
    assert third.http_listen == "127.0.0.1:8083"
    with pytest.raises(DataFolderError, match="--listeners INTERNAL and --listeners EXTERNAL: 3"):
        check_workers(settings)
    apart = {**_TWO, "listeners": "INTERNAL://127.0.0.1:9092,EXTERNAL://[::1]:9096"}
    check_workers(_settings(**_WORKERS, **apart, data_dir=tmp_path))
    with pytest.raises(DataFolderError, match="--advertised-listeners EXTERNAL: 3 workers"):
        check_workers(
            _settings(**_WORKERS, **apart, advertised_listeners="EXTERNAL://h:65534",
                      data_dir=tmp_path)
        )  # fmt: skip

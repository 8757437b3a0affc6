"""Settings that would open something by mistake are refused at the start, with what to do."""

from pathlib import Path
from typing import Any

import pytest

from pidlease.storage.errors import DataFolderError
from proxy.configuration.component_configs import check_exposure, security_config
from proxy.configuration.settings import Settings, SettingsError, load_settings

_FILES = {"ssl_certificate": "c.pem", "ssl_key": "k.pem"}
_SHARED = {"log": "kafka", "upstream": "k:9092", "zookeeper": "z:2181", "shared": True}
_TLS = {**_FILES, "http_security_protocol": "SASL_SSL"}
_MTLS = {**_TLS, "ssl_client_auth": "requested", "ssl_client_ca": "a"}
_OPEN = {"kafka_listen": "0.0.0.0:9092", "kafka_advertise": "h:9092"}


def _settings(**given: Any) -> Settings:
    return load_settings(None, given)


def test_nothing_is_secured_by_default() -> None:
    assert security_config(_settings()).is_off


@pytest.mark.parametrize(("given", "message"), [
    ({"kafka_security_protocol": "SSL"}, "--ssl-certificate and --ssl-key"),
    ({"kafka_security_protocol": "SSL", **_FILES, "ssl_client_auth": "required"},
     "--ssl-client-ca"),
    ({"http_security_protocol": "SASL_PLAINTEXT"}, "in clear"),
    ({"metrics_security_protocol": "SASL_PLAINTEXT", "metrics_listen": "127.0.0.1:1"}, "in clear"),
    ({"metrics_security_protocol": "SASL_SSL", **_FILES}, "needs --metrics-listen"),
    ({"metrics_listen": "0.0.0.0:9464"}, "--metrics-security-protocol SASL_SSL"),
    ({"metrics_listen": "0.0.0.0:9464", "kafka_security_protocol": "SASL_SSL",
      "http_security_protocol": "SASL_SSL", **_FILES}, "--metrics-security-protocol SASL_SSL"),
    ({"metrics_listen": "127.0.0.1:8080"}, "--http-listen and --metrics-listen are both"),
    ({"metrics_listen": "127.0.0.1:9092"}, "--kafka-listen and --metrics-listen are both"),
    ({"http_listen": "127.0.0.1:9092"}, "--kafka-listen and --http-listen are both"),
    ({"kafka_security_protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": "PLAIN"},
     "in clear"),
    ({"kafka_security_protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": "OAUTHBEARER"},
     "in clear"),
    ({"kafka_security_protocol": "SASL_SSL", **_FILES, "sasl_enabled_mechanisms": "OAUTHBEARER"},
     "--sasl-oauthbearer-jwks-endpoint-url"),
    ({"sasl_oauthbearer_jwks_endpoint_url": "https://issuer/keys"}, "expected-audience"),
    ({"sasl_oauthbearer_jwks_endpoint_url": "https://issuer/keys",
      "sasl_oauthbearer_expected_audience": "a"}, "expected-issuer"),
    ({"acls": "kafka"}, "--acls kafka needs --log kafka"),
    ({**_SHARED, **_TLS}, "needs --server-principals, --ssl-client-ca"),
    ({**_SHARED, **_TLS, "server_principals": "User:a"}, "needs --server-principals"),
    ({**_SHARED, **_MTLS}, "needs --server-principals"),
    ({**_SHARED, **_MTLS, "server_principals": ";"}, "needs --server-principals"),
    ({**_SHARED, "server_principals": "User:a"}, "--server-principals needs --shared, and"),
    ({**_MTLS, "server_principals": "User:a"}, "--server-principals needs --shared, and"),
    (_OPEN, "no login by TLS"),
    ({**_OPEN, "kafka_security_protocol": "SASL_PLAINTEXT"}, "no login by TLS"),
    ({**_OPEN, **_FILES, "kafka_security_protocol": "SSL"}, "no login by TLS"),
    ({**_OPEN, **_FILES, "kafka_security_protocol": "SSL", "ssl_client_auth": "requested",
      "ssl_client_ca": "a"}, "no login by TLS"),
    ({"http_listen": "0.0.0.0:8080", "kafka_security_protocol": "SASL_SSL", **_FILES},
     "--http-security-protocol"),
])  # fmt: skip
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFolderError, match=message):
        check_exposure(_settings(**given))


@pytest.mark.parametrize("given", [
    {"insecure": True},
    {"kafka_security_protocol": "SASL_SSL", **_FILES},
    {"kafka_security_protocol": "SSL", "ssl_client_auth": "required", "ssl_client_ca": "a",
     **_FILES},
])  # fmt: skip
def test_logins_by_tls_may_listen_beyond_this_machine(given: dict[str, Any]) -> None:
    check_exposure(_settings(**_OPEN, **given))


@pytest.mark.parametrize(("address", "host"), [
    ({}, "127.0.0.1"), ({"http_listen": "[::1]:8080"}, "::1"),
    ({"http_listen": "0.0.0.0:8080", "http_advertise": "server-1:8080"}, "server-1"),
])  # fmt: skip
def test_active_servers_know_one_another(address: dict[str, str], host: str) -> None:
    found = security_config(
        _settings(**_SHARED, **_MTLS, **address, server_principals="User:CN=a,O=b;User:c")
    )
    assert found.members == (frozenset({"CN=a,O=b", "c"}), host)
    assert security_config(_settings(**_SHARED)).members is None


@pytest.mark.parametrize("given", [
    {"server_principals": "a"},
    {"sasl_enabled_mechanisms": "SCRAM-SHA-1"}, {"sasl_enabled_mechanisms": ""},
    {"super_users": "root"}, {"super_users": "User:"}, {"super_users": "User:a,Group:b;x"},
    {"ssl_principal_mapping_rules": "RULE:("}, {"kafka_security_protocol": "ssl"},
    {"sasl_oauthbearer_jwks_endpoint_url": "http://issuer/keys"},
    {"sasl_oauthbearer_jwks_endpoint_url": "file:///etc/passwd"}, {"acls": "yes"},
])  # fmt: skip
def test_invalid_values(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        _settings(**given)


def test_a_password_of_a_key_is_not_shown(tmp_path: Path) -> None:
    settings = _settings(ssl_key_password="planted")
    assert "planted" not in repr(settings)
    assert "planted" not in str(settings.model_dump())

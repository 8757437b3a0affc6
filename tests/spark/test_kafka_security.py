"""TLS and SASL options as users of Spark write them: mapped, or refused with what to use."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pidlease.kafka.client.kafka_options import connection_options, read_security, refuse_unmapped
from pidlease.spark.errors import OptionError, SinkError
from pidlease.spark.sink.settings import read_settings
from tests.servers.authority import Authority, needs_openssl

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
TLS = {"security.protocol": "SSL"}
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
SINK = {"kafka.bootstrap.servers": "a:1", "leases": "http://a:2", "checkpointLocation": "/c"}


def prefixed(given: Mapping[str, str]) -> dict[str, str]:
    """Name the options as Spark does."""
    return {f"kafka.{name}": value for name, value in given.items()}


def mapped(given: Mapping[str, str]) -> dict[str, Any]:
    """Return a connection's options."""
    return connection_options(read_security(prefixed(given)))


@pytest.mark.parametrize(
    ("mechanism", "jaas", "password"),
    [
        ("PLAIN", f'{PLAIN} required username="me" password="it\'s a=b;c";', "it's a=b;c"),
        ("PLAIN", f"{PLAIN} required\n  username=me\n  password=secret;", "secret"),
        ("SCRAM-SHA-256", f'{SCRAM} required password="a\\"b\\\\c" username="me" ;', 'a"b\\c'),
        ("SCRAM-SHA-512", f'kafkashaded.{SCRAM} required username="me" password="x"', "x"),
    ],
)
def test_jaas(mechanism: str, jaas: str, password: str) -> None:
    given = {"security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism}
    assert mapped({**given, "sasl.jaas.config": jaas}) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "me",
        "sasl_plain_password": password,
    }


@needs_openssl
def test_pem_files_and_pem_texts(tmp_path: Path) -> None:
    """The names of stores, their types, and the texts in their place, lead to the same context."""
    authority = Authority(tmp_path)
    own = authority.issue("client")
    store = tmp_path / "client-store.pem"
    store.write_text(own.key.read_text() + own.certificate.read_text())
    root = str(authority.root.certificate)
    for given in (
        {"ssl.ca.location": root},
        {"ssl.truststore.location": root},
        {"ssl.truststore.type": "pem", "ssl.truststore.location": root},
        {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": Path(root).read_text()},
        {"ssl.truststore.location": root, "ssl.keystore.location": str(store)},
        {
            "ssl.truststore.location": root,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": own.certificate.read_text(),
            "ssl.keystore.key": own.key.read_text(),
        },
    ):
        context = mapped({**TLS, **given})["ssl_context"]
        (trusted,) = context.get_ca_certs()
        assert ("commonName", "root") in trusted["subject"][0]
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED
    given = {**TLS, "ssl.ca.location": root, "ssl.endpoint.identification.algorithm": ""}
    context = mapped(given)["ssl_context"]
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_a_java_key_store_without_an_extension(tmp_path: Path) -> None:
    """Its content says what it is; and a file that is not there is named."""
    store = tmp_path / "trusted"
    store.write_bytes(bytes.fromhex("feedfeed00000002") + bytes(100))
    with pytest.raises(ValueError, match=r"it is no PEM file.*keytool -exportcert"):
        mapped({**TLS, "ssl.truststore.location": str(store)})
    with pytest.raises(ValueError, match=r"it is no PEM file.*openssl pkcs12"):
        mapped({**TLS, "ssl.keystore.location": str(store)})
    with pytest.raises(ValueError, match="nowhere is not there"):
        mapped({**TLS, "ssl.truststore.location": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"security.protocol": "TLS"}, "none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({**TLS, "ssl.truststore.location": "/a/trusted.jks"}, "which Python cannot read: export"),
        ({**TLS, "ssl.truststore.type": "JKS"}, "kafka.ssl.truststore.type JKS is a Java key"),
        ({**TLS, "ssl.keystore.type": "PKCS12"}, "openssl pkcs12 -in client.p12"),
        ({**TLS, "ssl.keystore.location": "/a/client.p12"}, "give kafka.ssl.keystore.type=PEM"),
        ({**TLS, "ssl.keystore.key": "x"}, "go together"),
        ({**TLS, "ssl.ca.location": "a", "ssl.truststore.location": "b"}, "give either"),
        ({**TLS, "ssl.keystore.location": "a", "ssl.keystore.key": "b"}, "give either"),
        ({**TLS, "ssl.endpoint.identification.algorithm": "none"}, "is https, or empty"),
        ({"ssl.ca.location": "a"}, "goes with kafka.security.protocol SSL or SASL_SSL"),
        ({**TLS, "sasl.mechanism": "PLAIN"}, "goes with kafka.security.protocol SASL_SSL or"),
        ({"security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is missing; it is one of PLAIN"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is none of PLAIN, SCRAM-SHA-256"),
        (SASL, "kafka.sasl.jaas.config is missing"),
        ({**SASL, "sasl.jaas.config": f"{SCRAM} required;"}, "plain.PlainLoginModule required"),
        ({**SASL, "sasl.jaas.config": f"{PLAIN} required username=a;"}, "or no password"),
        ({**SASL, "sasl.jaas.config": "nonsense"}, "for PLAIN is: org.apache.kafka"),
        ({**SASL, "sasl.jaas.config": "x", "sasl.username": "a"}, "give either"),
    ],
)
def test_contradictions(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read_security(prefixed(given))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kafka.ssl.truststore.password", "PEM files have none"),
        ("kafka.ssl.keystore.password", "the password of a key is kafka.ssl.key.password"),
        ("kafka.ssl.enabled.protocols", "is not needed"),
        ("kafka.sasl.kerberos.service.name", "Kerberos, which is not supported"),
        ("kafka.sasl.oauthbearer.jwks.endpoint.url", "the URL of a file with a token"),
        ("kafka.sasl.mechanisms", "give kafka.sasl.mechanism"),
        ("kafka.ssl.key.location", "into the file of kafka.ssl.keystore.location"),
    ],
)
def test_names_that_cannot_be_mapped(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        refuse_unmapped([name])
    with pytest.raises(SinkError, match=text):
        read_settings({**SINK, name: "x"})


@needs_openssl
def test_the_sink_logs_in(tmp_path: Path) -> None:
    root = Authority(tmp_path).root.certificate
    jaas = f'{SCRAM} required username="me" password="top secret";'
    given = prefixed({
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas, "ssl.truststore.location": str(root),
    })  # fmt: skip
    settings = read_settings({**SINK, **given, "leases": "https://a:8080"})
    security = settings.producer()
    assert (security.mechanism, security.username) == ("SCRAM-SHA-512", "me")
    assert security.http_login("https://a:8080") == ("me", "top secret")
    assert security.http_login("http://a:8080") is None, "Basic would show the password"
    assert "top secret" not in repr(settings) + repr(security)


async def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    token = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    url = "sasl.oauthbearer.token.endpoint.url"
    provider = mapped({**token, url: file.as_uri()})["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    file.write_text("second\n")
    assert await provider.token() == "second"
    java = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
    for more in (
        {"sasl.jaas.config": f"{java}Module required;"},
        {"sasl.login.callback.handler.class": f"{java}CallbackHandler"},
    ):
        given = prefixed({**token, url: file.as_uri(), **more})
        refuse_unmapped(given)
        read_security(given)
    for wrong in (
        {"sasl.jaas.config": f"{PLAIN} required;", url: file.as_uri()},
        {"sasl.login.callback.handler.class": "my.Handler", url: file.as_uri()},
        {},
        {url: "https://issuer/token"},
        {url: file.as_uri(), "sasl.username": "me"},
    ):
        with pytest.raises(OptionError, match=r"OAUTHBEARER|file:///PATH"):
            read_security(prefixed({**token, **wrong}))


@needs_openssl
def test_the_sink_over_tls(tmp_path: Path) -> None:
    root = Authority(tmp_path).root.certificate
    given = prefixed({**TLS, "ssl.truststore.location": str(root)})
    producer = read_settings({**SINK, **given}).producer()
    assert producer.security_protocol == "SSL"
    assert producer.ssl_context is not None
    (trusted,) = producer.ssl_context.get_ca_certs()
    assert trusted["subject"]
    with pytest.raises(SinkError, match="is not there"):
        read_settings({**SINK, **given, "kafka.ssl.truststore.location": "/nowhere"}).producer()


def test_no_text_shows_a_password() -> None:
    jaas = f'{SCRAM} required username="me" password="top secret";'
    with pytest.raises(OptionError) as caught:
        read_security(prefixed({**SASL, "sasl.jaas.config": jaas}))
    assert "top secret" not in str(caught.value)
    settings = read_settings({**SINK, "kafka.ssl.key.password": "top secret", **prefixed(TLS)})
    assert "top secret" not in repr(settings)

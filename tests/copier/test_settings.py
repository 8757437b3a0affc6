"""Options of a copy that make no sense are refused by name."""

import ssl
from typing import Any

import pytest

from pidlease.copier import CopySettings
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.settings import UpstreamConfig

GOOD: dict[str, Any] = {
    "source": "a:1", "destination": "b:2", "leases": "http://b:3", "group": "g", "topics": ["t"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": ""}, "group is the name"),
        ({"topics": []}, "either topics, or topics_regex"),
        ({"topics_regex": ".*"}, "either topics, or topics_regex"),
        ({"topics": "orders"}, "topics is a list"),
        ({"topics": [], "topics_regex": "("}, r"topics_regex '\('"),
        ({"topics": [], "topics_regex": "(?i)x"}, r"topics_regex '\(\?i\)x'"),
        ({"topics": ["a", "b"], "rename": "c"}, "would make one topic of several"),
        ({"topics": [], "topics_regex": ".*", "rename": "c"}, "would make one topic of several"),
        ({"leases": "b:3"}, "leases is the URL"),
        ({"source_security": {"user": "me"}}, "source_security: unknown: user"),
        ({"start": -3}, "start is"),
        ({"max_in_flight": 6}, "max_in_flight is 1 to 5"),
        ({"buffer_bytes": 0}, "buffer_bytes is above 0"),
        ({"memory_bytes": 0}, "memory_bytes is above 0"),
        ({"commit_interval_ms": 0}, "commit_interval_ms is above 0"),
        ({"fetch_wait_ms": -1}, "fetch_wait_ms is not below 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CopySettings(**{**GOOD, **change})


def test_topics_are_chosen_and_renamed() -> None:
    one = CopySettings(**GOOD, rename="mirror.{topic}")
    assert (one.selects("t"), one.selects("tt"), one.renamed("t")) == (True, False, "mirror.t")
    several = CopySettings(**{**GOOD, "topics": (), "topics_regex": "a|ab.*"})
    assert [each for each in ("a", "ab", "abc", "ba", "a\n") if several.selects(each)] == [
        "a", "ab", "abc",
    ]  # fmt: skip
    assert CopySettings(**GOOD, rename="other").renamed("t") == "other"


class Patience:
    """Of a client that waits for a cluster."""

    request_timeout_ms = 1_500
    give_up_ms = 1.0


def config_of(**security: Any) -> UpstreamConfig:
    return ClusterConnection(
        "a side", "a:1", Patience(), ConnectionSecurity(**security)
    ).cluster.config


@pytest.mark.parametrize(
    ("security", "said"),
    [
        ({"security_protocol": "TLS"}, "security_protocol 'TLS' is none of PLAINTEXT, SSL"),
        ({"security_protocol": "SSL"}, "security_protocol SSL needs an ssl_context"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs sasl_plain_username"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"},
         "sasl_mechanism 'GSSAPI' is none of PLAIN, SCRAM"),
    ],
)  # fmt: skip
def test_connections_that_cannot_be_made_so_are_refused(
    security: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        config_of(**security)


def test_connections_are_made_as_the_options_say() -> None:
    plain = config_of()
    assert (plain.bootstrap, plain.client_id, plain.mechanism) == (
        (("a", 1),), "pidlease-copier", "",
    )  # fmt: skip
    assert plain.ssl_context is None
    assert (plain.connect_seconds, plain.request_seconds) == (1.5, 1.5)
    context = ssl.create_default_context()
    secure = config_of(
        security_protocol="SASL_SSL", ssl_context=context, sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="me", sasl_plain_password="secret",
    )  # fmt: skip
    assert secure.ssl_context is context
    assert (secure.mechanism, secure.username, secure.password) == (
        "SCRAM-SHA-256", "me", "secret",
    )  # fmt: skip
    assert "secret" not in repr(secure)
    defaults = {"sasl_plain_username": "me", "sasl_plain_password": "secret"}
    assert config_of(security_protocol="SASL_PLAINTEXT", **defaults).mechanism == "PLAIN"

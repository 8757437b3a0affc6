"""A server's process with several named listeners, and their clients' settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.security.acls import Operation, ResourceKind
from tests.secure.secured import allow, write_acls
from tests.secure.secured_process import Running, TlsServer, running

#: What the listeners are for: the own network, users with a password, and partners' machines with
#: a certificate.
INTERNAL, EXTERNAL, PARTNER = "INTERNAL", "EXTERNAL", "PARTNER"
PROTOCOLS: Final = {INTERNAL: "PLAINTEXT", EXTERNAL: "SASL_SSL", PARTNER: "SSL"}
#: The certificate is for both, so that each listener has a host of its own.
ADVERTISED: Final = {INTERNAL: LOOPBACK, EXTERNAL: "localhost", PARTNER: LOOPBACK}


class Listening(Running):
    """A server with three listeners. Everyone may use topic `open`, alice also topic `t`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        given = dict(self.server.settings)
        del given["kafka_security_protocol"]
        self.ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
        given |= {
            "listeners": ",".join(f"{name}://{LOOPBACK}:{self.ports[name]}" for name in PROTOCOLS),
            "advertised_listeners": f"{EXTERNAL}://{self.address(EXTERNAL)}",
            "listener_security_protocol_map": ",".join(map(":".join, PROTOCOLS.items())),
            "ssl_client_auth": "requested",
            "ssl_client_ca": str(self.authority.root.certificate),
            "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+)$/$1/",
        }
        self.server = TlsServer(folder, data_dir=self.data, settings=given)
        self.server.client = self.client
        topic, group = ResourceKind.TOPIC, ResourceKind.GROUP
        write_acls(
            self.data,
            *(allow("*", each, topic, "open") for each in (Operation.READ, Operation.WRITE)),
            *(allow("alice", each, topic, "t") for each in (Operation.READ, Operation.WRITE)),
            allow("*", Operation.READ, group, "g"),
        )

    def address(self, name: str) -> str:
        """What the listener's clients connect to."""
        return f"{ADVERTISED[name]}:{self.ports[name]}"

    def confluent(self, name: str, **more: Any) -> dict[str, Any]:
        """The settings of a client of librdkafka; the partner's certificate is the `client` one."""
        found = {"bootstrap.servers": self.address(name), "security.protocol": PROTOCOLS[name]}
        if name != INTERNAL:
            found["ssl.ca.location"] = str(self.authority.root.certificate)
        if name == EXTERNAL:
            found |= {key: value for key, value in self.librdkafka("alice", "SCRAM-SHA-256").items()
                      if key.startswith("sasl.")}  # fmt: skip
        if name == PARTNER:
            found |= {
                "ssl.certificate.location": str(self.client.certificate),
                "ssl.key.location": str(self.client.key),
            }
        return {**found, **more}

    def aio(self, name: str, **more: Any) -> dict[str, Any]:
        """The settings of a client of aiokafka, on INTERNAL or EXTERNAL."""
        found: dict[str, Any] = {}
        if name == EXTERNAL:
            found = self.aiokafka("alice", "SCRAM-SHA-512")
        return {**found, "bootstrap_servers": self.address(name), **more}


@contextmanager
def listening(folder: Path, *topics: str) -> Iterator[Listening]:
    """Start a server with some topics; it is killed at the end of the block."""
    with running(Listening(folder), *topics) as made:
        yield made

"""Users, ACLs and quotas of two active servers: a change at one of them counts at both.

Changes come as operators make them: by Kafka's requests at one server, by `pidlease users` and by
an editor in the data directory of one.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from pidlease.storage.files import RealFiles
from proxy.security.entry_file import EntryFile
from proxy.security.quota_rules import QUOTA_FILE, REQUESTS, Entity, Quota
from tests.crash.readback import consume
from tests.secure.secured import PASSWORDS, write_users
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(900)]
_MECHANISM: Final = "SCRAM-SHA-256"
_REFUSED: Final = 29
_SECRETS: Final = {**PASSWORDS, "carol": "carol-secret", "dave": "dave-secret"}


class _Servers:
    """Two active servers, and a Kafka of their own."""

    def __init__(self, kafka: KafkaServer, a: PidleaseServer, b: PidleaseServer) -> None:
        self.kafka, self.a, self.b = kafka, a, b
        self._admins: list[AdminClient] = []

    def login(self, server: PidleaseServer, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": server.bootstrap, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": _MECHANISM, "sasl.username": user, "sasl.password": _SECRETS[user],
        }  # fmt: skip

    def admin(self, server: PidleaseServer) -> AdminClient:
        self._admins.append(AdminClient(self.login(server, "root")))  # it must live until the end
        return self._admins[-1]

    def may_log_in(self, server: PidleaseServer, user: str) -> bool:
        admin = AdminClient({**self.login(server, user), "socket.timeout.ms": 2000})
        try:
            admin.list_topics(timeout=2)
        except KafkaException:
            return False
        return True

    def write(self, server: PidleaseServer, user: str, topic: str = "t") -> set[int]:
        """Send a record to each partition, and return the error codes."""
        codes: list[int] = []
        producer = Producer(self.login(server, user))
        for partition in range(2):
            producer.produce(topic, user.encode(), partition=partition,
                             on_delivery=lambda error, _: codes.append(_code(error)))  # fmt: skip
        assert producer.flush(WAIT_S) == 0
        return set(codes)


def _code(error: Any) -> int:
    return 0 if error is None else int(error.code())


@pytest.fixture(params=["kafka", "zookeeper"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Servers]:
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(tmp_path / "kafka"))
        settings = {
            "log": "kafka", "upstream": kafka.bootstrap, "shared": "true", "acls": "file",
            "kafka_security_protocol": "SASL_PLAINTEXT", "upstream_metadata_seconds": "0.5",
            "super_users": "User:root;User:ANONYMOUS", "log_level": "info",
        }  # fmt: skip
        if request.param == "zookeeper":
            zookeeper = stack.enter_context(ZooKeeperServer(tmp_path / "zookeeper"))
            settings["zookeeper"] = zookeeper.hosts
        else:
            settings["coordination"] = "kafka"
        straight = AdminClient({"bootstrap.servers": kafka.bootstrap})
        straight.create_topics([NewTopic("t", 2)])["t"].result(WAIT_S)
        made = []
        for name, users in (("a", ("root", "alice")), ("b", ("root",))):
            data = tmp_path / name / "data"
            write_users(data, *users)  # with another salt at each
            made.append(PidleaseServer(tmp_path / name, data_dir=data, settings=settings))
        for each in made:
            stack.callback(each.kill9)
            each.start()
        yield _Servers(kafka, *made)
        for each in made:
            assert each.stop() == 0


def _users(server: PidleaseServer, *command: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "proxy", "users", *command, "--data-dir", str(server.data_dir)],
        input=f"{_SECRETS[command[1]]}\n", text=True, check=True, timeout=WAIT_S,
        capture_output=True,
    )  # fmt: skip


def test_a_change_at_one_server_counts_at_both(servers: _Servers) -> None:
    a, b = servers.a, servers.b
    # The users of the first server were there first; the second one's own file is kept aside.
    assert servers.may_log_in(b, "alice")
    assert (b.data_dir / "security" / "users.before-common").exists()

    # A user, by Kafka's request at one server; and by a command at the other one.
    information: Any = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    carol = UserScramCredentialUpsertion("carol", information, _SECRETS["carol"].encode())
    servers.admin(b).alter_user_scram_credentials([carol])["carol"].result(WAIT_S)
    assert servers.may_log_in(b, "carol")
    until(lambda: servers.may_log_in(a, "carol"), "the user at the other server")
    _users(a, "add", "dave")
    until(lambda: servers.may_log_in(b, "dave"), "the user of a command at the other server")

    # A right, at one server; it counts where the partitions are, at both.
    right = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:carol", "*",
        AclOperation.WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    assert servers.write(a, "carol") == {_REFUSED}
    idempotent = AclBinding(
        ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:carol", "*",
        AclOperation.IDEMPOTENT_WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for done in servers.admin(a).create_acls([right, idempotent]).values():
        done.result(WAIT_S)
    until(lambda: _both(servers, "carol") == {0}, "the right at both")
    every: Any = None
    gone = AclBindingFilter(
        ResourceType.TOPIC, every, ResourcePatternType.ANY, "User:carol", every,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    (removed,) = servers.admin(b).delete_acls([gone]).values()
    assert removed.result(WAIT_S) == [right]
    until(lambda: _both(servers, "carol") == {_REFUSED}, "the revocation at both")

    # A quota, by an editor.
    file = EntryFile(RealFiles(), a.data_dir / "security", QUOTA_FILE)
    quota = Quota(Entity("carol"), ((REQUESTS, 5.0),))
    file.change(lambda _: [quota])
    other = EntryFile(RealFiles(), b.data_dir / "security", QUOTA_FILE)
    until(lambda: other.read() == {quota}, "the quota at the other server")

    # A server is down while a user is removed: after its start, the user is still removed.
    b.stop()
    gone_user = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    servers.admin(a).alter_user_scram_credentials([gone_user])["carol"].result(WAIT_S)
    b.start()
    assert not servers.may_log_in(b, "carol")
    assert servers.may_log_in(b, "dave")
    assert {each.value for each in consume(servers.kafka.bootstrap, "t", 2)} == {b"carol"}


def _both(servers: _Servers, user: str) -> set[int]:
    """The codes of records of a user, sent by each server."""
    return servers.write(servers.a, user) | servers.write(servers.b, user)

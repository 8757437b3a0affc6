"""`--acls kafka`: in front of a Kafka with an authorizer, its own ACLs decide.

One Kafka with Kafka's StandardAuthorizer, and one server; each test has topics of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from confluent_kafka.cimpl import NewTopic

from proxy.security.acls import Operation, ResourceKind
from tests.clients.tools import run_tool
from tests.crash.lives import HANG_S, get_on
from tests.crash.readback import consume
from tests.crash.relay import Line
from tests.crash.seeds import new_random
from tests.http_api.appending import path_of
from tests.kafka_backend.secured_servers import SecuredPair, secured_pair
from tests.secure.secured import PASSWORDS, allow, write_acls, write_users
from tests.servers.authority import Authority, needs_openssl
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

_TOPICS: Final = ("tool", "straight", "straight-not", "away", "away-not", "file", "refused")
_PARTITIONS: Final = 4
_NO_TOPIC_RIGHT: Final = 29
_NO_CLUSTER_RIGHT: Final = 31
_BROKER_NOT_AVAILABLE: Final = 8
_MECHANISM: Final = "SCRAM-SHA-256"
_JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="x" password="x" user_limited="secret";'
)
_NOT_READ: Final = "Kafka's ACLs were not read; the previous ones stay in force"
_READ_AGAIN: Final = "Kafka's ACLs are read again"


class _Running(NamedTuple):
    kafka: KafkaServer
    line: Line
    server: PidleaseServer
    data: Path

    def login(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.server.bootstrap, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": _MECHANISM, "sasl.username": user, "sasl.password": PASSWORDS[user],
        }  # fmt: skip

    def admin(self, user: str = "") -> AdminClient:
        """At the server as a user; without one, at Kafka itself as its super user."""
        straight: dict[str, Any] = {"bootstrap.servers": self.kafka.bootstrap}
        return AdminClient(self.login(user) if user else straight)

    def write(self, user: str, topic: str) -> int:
        """Send a record, and return the error code."""
        codes: list[int] = []
        producer = Producer(self.login(user))
        producer.produce(topic, b"x", on_delivery=lambda error, _: codes.append(_code(error)))
        assert producer.flush(WAIT_S) == 0
        return codes[0]

    def topics(self, user: str) -> set[str]:
        return set(self.admin(user).list_topics(timeout=WAIT_S).topics)

    def in_kafka(self, user: str) -> set[tuple[str, str]]:
        """Names and operations of the ACLs of a user, as Kafka itself has them."""
        admin = self.admin()  # while it is waited for, it must not be collected
        found = admin.describe_acls(_all_of(user)).result(WAIT_S)
        return {(each.name, each.operation.name) for each in found}


def _code(error: Any) -> int:
    return 0 if error is None else int(error.code())


def _right(
    user: str, name: str, operation: Any = AclOperation.WRITE,
    pattern: Any = ResourcePatternType.LITERAL, permission: Any = AclPermissionType.ALLOW,
) -> AclBinding:  # fmt: skip
    return AclBinding(ResourceType.TOPIC, name, pattern, f"User:{user}", "*", operation, permission)


def _all_of(user: str) -> AclBindingFilter:
    every: Any = None  # a name or a host
    return AclBindingFilter(
        ResourceType.ANY, every, ResourcePatternType.ANY, f"User:{user}", every,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip


def _add(admin: AdminClient, *acls: AclBinding) -> None:
    for done in admin.create_acls(list(acls)).values():
        done.result(WAIT_S)


def _remove(admin: AdminClient, user: str) -> int:
    (done,) = admin.delete_acls([_all_of(user)]).values()
    return len(done.result(WAIT_S))


def _settings(upstream: str, **more: str) -> dict[str, str]:
    return {
        "log": "kafka", "upstream": upstream, "kafka_security_protocol": "SASL_PLAINTEXT",
        "acls": "kafka", "super_users": "User:root;User:ANONYMOUS", "log_level": "info", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Running]:
    folder = tmp_path_factory.mktemp("acls")
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.limited.plain.sasl.jaas.config": _JAAS,
    }
    kafka = KafkaServer(
        folder / "kafka", overrides=settings,
        listeners={"RELAYED": "PLAINTEXT", "LIMITED": "SASL_PLAINTEXT"},
    )  # fmt: skip
    line = Line(int(kafka.listeners["RELAYED"].rpartition(":")[2]))
    kafka.advertised["RELAYED"] = line.bootstrap
    data = folder / "data"
    write_users(data, "alice", "root")
    # It counts for nothing: the ACLs are Kafka's.
    write_acls(data, allow("*", Operation.ALL, ResourceKind.TOPIC, "file"))
    server = PidleaseServer(
        folder / "server", data_dir=data,
        settings=_settings(line.bootstrap, audit_log=str(folder / "audit")),
    )  # fmt: skip
    with line, kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic(each, 1) for each in _TOPICS]).values():
            made.result(WAIT_S)
        with server:
            yield _Running(kafka, line, server, data)
            assert server.stop() == 0


def test_kafka_acls_sh_adds_and_removes(running: _Running, tmp_path: Path) -> None:
    config = tmp_path / "root.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={_MECHANISM}\n"
        f'sasl.jaas.config={module} required username="root" password="{PASSWORDS["root"]}";\n'
    )

    def acls(*args: str) -> str:
        options = ("--command-config", str(config), *args, "--topic", "tool")
        lines = run_tool("kafka-acls", running.server.bootstrap, tmp_path, *options)
        return "\n".join(lines)

    assert running.write("alice", "tool") == _NO_TOPIC_RIGHT
    rule = ("--allow-principal", "User:alice", "--operation", "Write")
    assert "User:alice" in acls("--add", *rule)
    assert running.in_kafka("alice") == {("tool", "WRITE")}
    assert running.write("alice", "tool") == 0
    acls("--remove", "--force", *rule)
    assert running.in_kafka("alice") == set()
    assert running.write("alice", "tool") == _NO_TOPIC_RIGHT
    audit = running.data.with_name("audit").read_text()
    changes = [json.loads(line) for line in audit.splitlines() if "User:alice *" in line]
    what = "ALLOW WRITE TOPIC:tool LITERAL User:alice *"
    for operation in ("CREATE_ACL", "DELETE_ACL"):
        assert any(
            each["operation"] == operation and each["resource"] == what
            and each["principal"] == "User:root" and each["outcome"] == "success"
            for each in changes
        ), changes  # fmt: skip


def test_a_change_is_in_force_when_its_response_comes(running: _Running) -> None:
    """However often: no read every few seconds can do that."""
    root, alice = running.admin("root"), running.admin("alice")
    for _ in range(10):
        _add(root, _right("alice", "refused", AclOperation.DESCRIBE))
        assert "refused" in alice.list_topics(timeout=WAIT_S).topics
        assert _remove(root, "alice") == 1
        assert "refused" not in alice.list_topics(timeout=WAIT_S).topics


def test_a_rule_made_in_kafka_takes_effect(running: _Running) -> None:
    """A prefix allows, a denial wins over it, and all of it ends with the rules."""
    prefixed, deny = ResourcePatternType.PREFIXED, AclPermissionType.DENY
    _add(
        running.admin(),
        _right("alice", "straight", AclOperation.ALL, prefixed),
        _right("*", "straight-not", AclOperation.DESCRIBE, permission=deny),
    )
    until(lambda: running.topics("alice") == {"straight"}, "the rules to be in force")
    assert running.write("alice", "straight") == 0
    root = running.admin("root")
    described = root.describe_acls(_all_of("alice")).result(WAIT_S)
    assert [(each.name, each.resource_pattern_type) for each in described] == [
        ("straight", prefixed)
    ]
    assert _remove(running.admin(), "alice") == 1
    assert _remove(running.admin(), "*") == 1
    until(lambda: running.topics("alice") == set(), "the rules to be gone")
    assert running.write("alice", "straight") == _NO_TOPIC_RIGHT


def test_without_the_right_nothing_reaches_kafka(running: _Running) -> None:
    alice = running.admin("alice")
    (added,) = alice.create_acls([_right("alice", "refused")]).values()
    with pytest.raises(KafkaException) as refused:
        added.result(WAIT_S)
    assert _code(refused.value.args[0]) == _NO_CLUSTER_RIGHT
    _add(running.admin(), _right("alice", "refused", AclOperation.READ))
    (removed,) = alice.delete_acls([_all_of("alice")]).values()
    with pytest.raises(KafkaException) as refused:
        removed.result(WAIT_S)
    assert _code(refused.value.args[0]) == _NO_CLUSTER_RIGHT
    assert running.in_kafka("alice") == {("refused", "READ")}
    assert _remove(running.admin("root"), "alice") == 1


def test_what_kafka_refuses_is_passed_on(running: _Running) -> None:
    """Each entry has its own outcome, and valid ones are stored."""
    cluster = AclBinding(
        ResourceType.BROKER, "no-cluster", ResourcePatternType.LITERAL, "User:alice", "*",
        AclOperation.ALTER, AclPermissionType.ALLOW,
    )  # fmt: skip
    root = running.admin("root")
    valid = _right("alice", "refused", AclOperation.READ)
    done = root.create_acls([cluster, valid])
    with pytest.raises(KafkaException, match="kafka-cluster"):
        done[cluster].result(WAIT_S)
    done[valid].result(WAIT_S)
    assert running.in_kafka("alice") == {("refused", "READ")}
    assert _remove(root, "alice") == 1


def test_the_file_of_acls_counts_for_nothing(running: _Running) -> None:
    assert "file" not in running.topics("alice")
    write_acls(running.data, allow("*", Operation.ALL, ResourceKind.TOPIC, "*"))
    # Both files are looked at together: when the user is known, the ACLs have been looked at.
    write_users(running.data, "bob")
    until(lambda: _logs_in(running, "bob"), "the new user to be known")
    assert running.topics("bob") == set()


def _logs_in(running: _Running, user: str) -> bool:
    try:
        AdminClient({**running.login(user), "log_level": 0}).list_topics(timeout=1)
    except KafkaException:
        return False
    return True


def test_while_kafka_is_away_the_last_rules_stay(running: _Running) -> None:
    """Nothing opens, nothing closes, and the log and a metric say so."""
    root = running.admin("root")
    _add(root, _right("alice", "away", AclOperation.ALL))
    assert running.topics("alice") == {"away"}
    log = running.server.log_text
    assert _NOT_READ not in log()
    with running.line.cut():
        until(lambda: _NOT_READ in log(), "the server to notice it")
        age = running.server.metric("pidlease_acls_age_seconds")
        until(
            lambda: running.server.metric("pidlease_acls_age_seconds") > age + 1, "the age to grow"
        )
        assert running.topics("alice") == {"away"}
        assert running.write("alice", "away-not") == _NO_TOPIC_RIGHT
        (added,) = root.create_acls([_right("alice", "away-not")]).values()
        with pytest.raises(KafkaException, match="Kafka does not answer") as refused:
            added.result(WAIT_S)
        assert _code(refused.value.args[0]) == _BROKER_NOT_AVAILABLE
        assert running.topics("alice") == {"away"}
        # Made in Kafka meanwhile: seen when the server reaches it again.
        assert _remove(running.admin(), "alice") == 1
        assert running.topics("alice") == {"away"}
    until(lambda: running.topics("alice") == set(), "the rules of now")
    until(lambda: _READ_AGAIN in log(), "the log to say so")
    until(lambda: running.server.metric("pidlease_acls_age_seconds") < age, "young ACLs")


@needs_openssl
@pytest.mark.timeout(900)
def test_active_servers_that_know_one_another_by_certificates(
    running: _Running, tmp_path: Path
) -> None:
    """Each record is there once. Clients have their own rights, and none passes for a server."""
    random = new_random("secured-servers")
    topic, name = "secured", AclOperation.WRITE
    admin = running.admin()
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result(WAIT_S)
    _add(
        admin, _right("alice", topic, AclOperation.ALL),
        AclBinding(ResourceType.TRANSACTIONAL_ID, "named", ResourcePatternType.LITERAL,
                   "User:alice", "*", name, AclPermissionType.ALLOW),
    )  # fmt: skip
    with secured_pair(tmp_path, running.kafka) as pair:
        until(lambda: all(_served(each, topic) for each in pair.servers), "both to own some")
        loads = pair.loads(topic, _PARTITIONS, random)
        for load in loads:
            load.start()
        get_on(loads)
        assert _owners_that_served(pair, "alice", topic) == 200
        assert _owners_that_served(pair, "bob", topic) == 403
        other = tmp_path / "other"
        other.mkdir()
        tried = pair.check_intruders(topic, Authority(other).issue("a", "IP:127.0.0.1"))

        pair.b.kill9()
        until(lambda: _served(pair.a, topic) == _PARTITIONS, "the other one to own all")
        get_on(loads)
        pair.new_certificate(pair.a, "a")
        until(lambda: "certificates reloaded" in pair.a.log_text(), "the new certificate")
        pair.b.start()
        until(lambda: all(_served(each, topic) for each in pair.servers), "both to own some again")
        assert _owners_that_served(pair, "alice", topic) == 200
        get_on(loads)
        assert pair.a.metric("pidlease_servers_answering") == 2
        for load in loads:
            load.finish(HANG_S)
        stored = consume(running.kafka.bootstrap, topic, _PARTITIONS, markers=True)
        for load in loads:
            load.ledger.check(stored)
        assert b"intruder" not in {each.value for each in stored}
        for each in pair.servers:
            assert "do not accept each other" not in each.log_text()
            assert each.stop() == 0
    print(f"{len(stored)} records, {tried} requests of intruders")


def _served(server: PidleaseServer, topic: str) -> int:
    """How many of the topic's partitions a server owns; 0: it does not know all of them yet."""
    found = json.loads(server.get("/v1/status")[1])["partitions"]
    own = [each for each in found if each["topic"] == topic]
    return sum("elsewhere" not in each for each in own) if len(own) == _PARTITIONS else 0


def _owners_that_served(pair: SecuredPair, user: str, topic: str) -> int:
    """Read each partition at each server as a user; return the status, always the same one."""
    found, owners = set(), set()
    for server in pair.servers:
        with pair.http(server, user) as client:
            for number in range(_PARTITIONS):
                response = client.get(path_of(topic, number))
                found.add(response.status_code)
                owners.add(response.headers.get("pidlease-owner", ""))
    assert len(owners) == (3 if found == {200} else 1), owners
    (status,) = found
    return status


def test_a_start_without_the_right_to_read_them_is_refused(
    running: _Running, tmp_path: Path
) -> None:
    own = {"upstream_sasl": "PLAIN", "upstream_username": "limited", "upstream_password": "secret"}
    settings = _settings(running.kafka.listeners["LIMITED"], **own)
    with not_started(tmp_path, **settings) as server:
        assert "needs Describe on the cluster" in _refusal(server)


def test_a_start_without_an_authorizer_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    with not_started(tmp_path, **_settings(kafka.bootstrap)) as server:
        assert "has no authorizer, so it has no ACLs" in _refusal(server)


def _refusal(server: PidleaseServer) -> str:
    """The log of a server that does not start."""
    server.launch()
    until(lambda: not server.alive or "serving" in server.log_text(), "the end of the start")
    assert "serving" not in server.log_text()
    assert server.wait_exit() == 2
    return server.log_text()

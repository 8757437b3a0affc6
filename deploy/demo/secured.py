"""`make demo SECURE=1`: TLS, logins and rights, a producer that is let in, and an intruder.

alice writes by her name while the server is killed. Meanwhile an intruder tries each way in:
without TLS, without a login, with a wrong password, and as mallory: a login without any right.
"""

import http.client
import json
import secrets
import shutil
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from deploy.demo import DemoError
from deploy.demo.audit import Tally, compare
from deploy.demo.outcome import Verdict as PartVerdict
from deploy.demo.outcome import new_table
from deploy.demo.screen import Screen
from deploy.demo.server_certificate import write_certificates
from deploy.demo.story import SETTINGS
from pidlease.client import BlockingProducer
from tests.servers.pidlease import PidleaseServer

_TOPIC: Final = "orders"
_NAME: Final = "till-1"
_KILLS: Final = 3
#: Of records: a part is sent around each kill.
_PART: Final = 2_000
_USERS: Final = ("root", "alice", "mallory")
_RIGHTS: Final = (
    {"principal": "User:alice", "operation": "WRITE", "kind": "TOPIC", "name": _TOPIC},
    {"principal": "User:alice", "operation": "READ", "kind": "TOPIC", "name": _TOPIC},
    {"principal": "User:alice", "operation": "WRITE", "kind": "TRANSACTIONAL_ID", "name": _NAME},
)
_REFUSED: Final = frozenset((401, 403))
_HANG_S: Final = 60.0
_PAUSE_S: Final = 0.01
_MECHANISM: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, kw_only=True)
class Verdict(PartVerdict):
    """The result.

    Attributes:
        sent: the values that alice sent.
        stored: the values read back.
        kills: of the server, with records of alice in flight.
        tried: the intruder's attempts, by what was tried.
        let_in: those that were not refused.
    """

    sent: Sequence[bytes]
    stored: Sequence[bytes]
    kills: int
    tried: Counter[str]
    let_in: Counter[str]

    @property
    def tally(self) -> Tally:
        """The records sent and stored."""
        return compare([(b"", each) for each in self.sent], [(b"", each) for each in self.stored])

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        tally = self.tally
        yield f"{tally.lost} records lost", tally.lost > 0
        yield f"{tally.doubled} records doubled", tally.doubled > 0
        yield f"{tally.out_of_order} records out of order", tally.out_of_order > 0
        yield f"{tally.foreign} records stored that alice did not send", tally.foreign > 0
        yield f"only {self.kills} kills", self.kills < _KILLS
        yield "the intruder tried nothing", not self.tried
        for what, count in self.let_in.items():
            yield f"the intruder was let in {count} times: {what}", count > 0

    @override
    def tables(self) -> Mapping[str, Table]:
        table = new_table(["tried"], ["times", "refused", "let in"])
        for what, count in self.tried.items():
            let_in = self.let_in[what]
            table.add_row(what, f"{count}", f"{count - let_in}", f"{let_in}")
        return {"The intruder: what it tried without a right to it": table}

    @override
    def summary(self) -> str:
        tally, tried = self.tally, self.tried.total()
        return (
            f"demo, secured: sent {tally.sent}, stored {tally.stored}, kills {self.kills}, lost"
            f" {tally.lost}, doubled {tally.doubled}, out of order {tally.out_of_order}; the"
            f" intruder tried {tried} times, refused {tried - self.let_in.total()}, let in"
            f" {self.let_in.total()}"
        )


class SecuredServer(PidleaseServer):
    """A server with TLS and logins on its listeners; this class makes its files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        certificate, key, self.authority = write_certificates(folder)
        settings = {
            **SETTINGS, "kafka_security_protocol": "SASL_SSL", "http_security_protocol": "SASL_SSL",
            "ssl_certificate": str(certificate), "ssl_key": str(key), "acls": "file",
            "super_users": "User:root", "audit_log": str(folder / "audit.log"),
        }  # fmt: skip
        super().__init__(folder, settings=settings)
        self.passwords: Final = {user: secrets.token_hex(16) for user in _USERS}
        for user, password in self.passwords.items():
            self._add_user(user, password)
        (self.data_dir / "security/acls").write_text(
            "".join(f"{json.dumps(each)}\n" for each in _RIGHTS)
        )

    @property
    def url(self) -> str:
        """The HTTP address."""
        return f"https://{self.http_address}"

    @override
    def get(self, path: str) -> tuple[int, str]:
        status, body = self.ask("GET", path)
        return status, body.decode()

    def ask(
        self, method: str, path: str, user: str = "", password: str = "", body: object = None
    ) -> tuple[int, bytes]:
        """Send a request over HTTP; return the status and the body.

        Parameters:
            user: empty: without a login.
        """
        headers = {"Content-Type": "application/json"}
        if user:
            login = f"{user}:{password or self.passwords[user]}".encode()
            headers["Authorization"] = f"Basic {b64encode(login).decode()}"
        connection = http.client.HTTPSConnection(
            self.http_address, timeout=_HANG_S, context=self.context()
        )
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the demo's authority alone."""
        return ssl.create_default_context(cafile=str(self.authority))

    def librdkafka(self, user: str, **other: Any) -> dict[str, Any]:  # noqa: ANN401 - its options have many types
        """Return the settings of librdkafka for a user."""
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "log_level": 0,
            "ssl.ca.location": str(self.authority), "sasl.mechanism": _MECHANISM,
            "sasl.username": user, "sasl.password": self.passwords[user],
            "error_cb": lambda _: None, **other,
        }  # fmt: skip

    def _add_user(self, user: str, password: str) -> None:
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "proxy", "users", "add", user, "--data-dir", str(self.data_dir)],
            input=f"{password}\n", text=True, check=True, capture_output=True, timeout=_HANG_S,
        )  # fmt: skip


def run_secured(console: Console, directory: Path) -> int:
    """Run the secured part in an emptied directory; return the exit code."""
    shutil.rmtree(directory, ignore_errors=True)
    server = SecuredServer(directory)
    intruder = _Intruder(server)
    try:
        with Screen(console, {}) as screen:
            server.start()
            status, body = server.ask("POST", "/v1/topics", "root", body={"name": _TOPIC})
            if status != http.HTTPStatus.CREATED:
                raise DemoError(f"the topic was not created: {status} {body.decode()}")
            alice = _Alice(server)
            alice.thread.start()
            kills = 0
            for number in range(_KILLS):
                intruder.try_all()
                before = number * _PART
                alice.allowed = before + _PART
                alice.wait(before + _PART // 3)
                server.kill9()
                kills += alice.acknowledged < alice.allowed
                screen.log(
                    f"kill -9 of the server, {alice.acknowledged} of {alice.allowed} records"
                    f" acknowledged; {intruder.tried.total()} attempts of the intruder so far"
                )
                server.start()
                alice.wait(before + _PART)
            intruder.try_all()
            alice.finish()
            stored = _read_back(server)
    finally:
        server.kill9()
    return Verdict(
        sent=alice.values, stored=stored, kills=kills, tried=intruder.tried,
        let_in=intruder.let_in,
    ).conclude(console)  # fmt: skip


class _Alice:
    """A producer with a login, and with the right to write under its name.

    Attributes:
        allowed: how many records to send.
        acknowledged: how many are.
    """

    def __init__(self, server: SecuredServer) -> None:
        self.values: Final = [b"order %d" % number for number in range(_KILLS * _PART)]
        self.allowed = 0
        self.acknowledged = 0
        self.thread: Final = threading.Thread(target=self._run, daemon=True)
        self._server: Final = server
        self._problem = ""

    def wait(self, count: int) -> None:
        """Wait until a number of records is acknowledged."""
        deadline = time.monotonic() + _HANG_S
        while self.acknowledged < count:
            if self._problem or time.monotonic() > deadline:
                raise DemoError(f"alice's records are not acknowledged: {self._problem}")
            time.sleep(_PAUSE_S / 10)

    def finish(self) -> None:
        """Wait until the producer is closed."""
        self.thread.join()
        if self._problem:
            raise DemoError(f"alice failed after her last record: {self._problem}")

    def _run(self) -> None:
        server = self._server
        try:
            with BlockingProducer(
                bootstrap_servers=server.bootstrap, leases=server.url, name=_NAME,
                security_protocol="SASL_SSL", ssl_context=server.context(),
                sasl_mechanism="SCRAM-SHA-512", sasl_plain_username="alice",
                sasl_plain_password=server.passwords["alice"],
            ) as producer:  # fmt: skip
                for first in range(0, len(self.values), 10):
                    while self.allowed <= first:
                        time.sleep(_PAUSE_S)
                    futures = [
                        producer.send(_TOPIC, each, partition=0)
                        for each in self.values[first : first + 10]
                    ]
                    for future in futures:
                        future.result(_HANG_S)
                        self.acknowledged += 1
        except Exception as error:  # noqa: BLE001 - raised where main waits
            self._problem = repr(error)


class _Intruder:
    """Tries each way in.

    Attributes:
        tried: how often, by what was tried.
        let_in: what was not refused.
    """

    def __init__(self, server: SecuredServer) -> None:
        self.tried: Final[Counter[str]] = Counter()
        self.let_in: Final[Counter[str]] = Counter()
        self._server: Final = server

    def try_all(self) -> None:
        """Try each once."""
        records = f"/v1/topics/{_TOPIC}/partitions/0/records"
        append = {"records": [{"value": "forged"}]}
        lease = {"topic": _TOPIC, "partition": 0, "name": _NAME}
        self._try("Kafka: without TLS", lambda: self._produces({"security.protocol": "PLAINTEXT"}))
        self._try("Kafka: without a login", lambda: self._produces({"security.protocol": "SSL"}))
        self._try("Kafka: a wrong password", lambda: self._produces({"sasl.password": "guess"}))
        self._try("Kafka: produce without a right", lambda: self._produces({}))
        self._try("Kafka: consume without a right", self._consumes)
        for what, user, password in (
            ("without a login", "", ""),
            ("a wrong password", "alice", "guess"),
            ("without a right", "mallory", ""),
        ):
            for name, method, path, body in (
                ("append", "POST", records, append),
                ("read", "GET", records, None),
                ("take alice's name", "POST", "/v1/leases", lease),
                ("create a topic", "POST", "/v1/topics", {"name": "mine"}),
                ("list producers", "GET", "/v1/producers", None),
                ("metrics", "GET", "/metrics", None),
            ):
                ask = partial(self._asks, method, path, user, password, body)
                self._try(f"HTTP: {name}, {what}", ask)

    def _try(self, what: str, attempt: Callable[[], bool]) -> None:
        self.tried[what] += 1
        self.let_in[what] += attempt()

    def _asks(self, method: str, path: str, user: str, password: str, body: object) -> bool:
        """Return whether a request was not refused."""
        return self._server.ask(method, path, user, password, body)[0] not in _REFUSED

    def _produces(self, other: dict[str, Any]) -> bool:
        """Return whether a record was stored."""
        errors: list[Any] = []
        config = self._server.librdkafka("mallory", **{"message.timeout.ms": 1500, **other})
        if not config["security.protocol"].startswith("SASL"):
            config = {name: value for name, value in config.items() if "sasl" not in name}
        producer = Producer(config)
        producer.produce(
            _TOPIC, b"forged", partition=0, on_delivery=lambda error, _: errors.append(error)
        )
        producer.flush(_HANG_S)
        return errors != [] and errors[0] is None

    def _consumes(self) -> bool:
        """Return whether a record, or the end of the partition, was shown."""
        consumer = Consumer(self._server.librdkafka("mallory", **{"group.id": "mine"}))
        try:
            consumer.get_watermark_offsets(TopicPartition(_TOPIC, 0), timeout=1.5)
        except KafkaException:
            return False
        else:
            return True
        finally:
            consumer.close()


def _read_back(server: SecuredServer) -> list[bytes]:
    """Read all records as alice."""
    values: list[bytes] = []
    offset = 0
    while True:
        path = f"/v1/topics/{_TOPIC}/partitions/0/records?offset={offset}"
        status, body = server.ask("GET", path, "alice")
        if status != http.HTTPStatus.OK:
            raise DemoError(f"alice cannot read: {status} {body.decode()}")
        answer = json.loads(body)
        values += [each["value"].encode() for each in answer["records"]]
        if not answer["records"]:
            return values
        offset = answer["records"][-1]["offset"] + 1

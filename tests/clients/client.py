"""The clients: how each is called as a producer and as a group consumer, and what it prints."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients import install
from tests.clients.judge import Acked, Read
from tests.clients.login import Login
from tests.servers.kafka import kafka_version, short_lived, unavailable_reason
from tests.servers.kafka.install import fetch_jars, java_command

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Where a producer is asked for batches of about a hundred records: many of them are to be on
#: their way when the server dies. Everything else is as it comes.
_JAVA_PRODUCER = """\
batch.size=2000
compression.type={codec}
"""
#: What Kafka's own client comes with, and VerifiableProducer switches off.
_JAVA_DEFAULTS = """\
enable.idempotence=true
retries=2147483647
"""


@dataclass(frozen=True)
class Producing:
    """What a producer is to do: `count` records, numbered from 0, under a stream's number.

    Attributes:
        login: None: the server wants none.
    """

    bootstrap: str
    topic: str
    codec: str
    stream: int
    count: int
    login: Login | None = None


@dataclass(frozen=True)
class Consuming:
    """What a group consumer is to do: read `count` records, commit, leave.

    Attributes:
        protocol: of groups, "classic" or "consumer" (KIP-848); for the Java client.
        login: None: the server wants none.
    """

    bootstrap: str
    topic: str
    group: str
    count: int
    protocol: str = "classic"
    login: Login | None = None


@dataclass(frozen=True)
class Call:
    """A command, and what its environment has besides."""

    command: Sequence[str]
    env: Mapping[str, str]


class Client:
    """A client library, with programs that print "acked N P O" and "read S.N P O"."""

    def __init__(
        self,
        name: str,
        version: str,
        program: Callable[[], Call],
        missing: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`missing` says what to install, or None; `program` installs what is locked."""
        self.name = name
        self.version = version
        self.missing = missing
        self._program = program

    def __repr__(self) -> str:
        return self.name

    def producer(self, what: Producing, folder: Path) -> Call:
        """The call of a producer; `folder` is for its own files."""
        return self._call("produce", what.login, stream=what.stream, codec=what.codec,
                          topic=what.topic, bootstrap=what.bootstrap, count=what.count)  # fmt: skip

    def consumer(self, what: Consuming, folder: Path) -> Call:
        """The call of a group consumer; `folder` is for its own files."""
        return self._call("consume", what.login, group=what.group, topic=what.topic,
                          bootstrap=what.bootstrap, count=what.count)  # fmt: skip

    def _call(self, action: str, login: Login | None, **options: object) -> Call:
        program = self._program()
        words = [word for name, each in options.items() for word in (f"--{name}", str(each))]
        env = {**program.env, **({} if login is None else login.env())}
        return Call([*program.command, action, *words], env)

    def acked(self, line: str) -> Acked | None:
        """What a line of a producer says of a record, if it does."""
        if not line.startswith("acked "):
            return None
        number, partition, offset = map(int, line.split(" ")[1:])
        return Acked(number, partition, offset)

    def read(self, line: str) -> Read | None:
        """What a line of a consumer says of a record, if it does."""
        if not line.startswith("read "):
            return None
        _, identity, partition, offset = line.split(" ")
        return _read(identity, int(partition), int(offset))

    def said_version(self, lines: Sequence[str]) -> str:
        """The version that the program itself gave."""
        return next(line.split(" ")[1] for line in lines if line.startswith("client "))


class JavaClient(Client):
    """Kafka's own client, by VerifiableProducer and VerifiableConsumer of Kafka's own tools."""

    def __init__(self) -> None:
        super().__init__("Java", kafka_version(), lambda: Call([], {}), unavailable_reason)

    def producer(self, what: Producing, folder: Path) -> Call:
        """See `Client`. Records are as short as that tool makes them: "STREAM.NUMBER"."""
        config = _JAVA_DEFAULTS + _JAVA_PRODUCER.format(codec=what.codec)
        return self._java("VerifiableProducer", what, folder / f"java-{what.stream}", config,
                          "--value-prefix", str(what.stream))  # fmt: skip

    def consumer(self, what: Consuming, folder: Path) -> Call:
        """See `Client`."""
        return self._java("VerifiableConsumer", what, folder / f"java-{what.group}", "",
                          "--group-id", what.group, "--verbose",
                          "--group-protocol", what.protocol)  # fmt: skip

    def _java(
        self, tool: str, what: Producing | Consuming, folder: Path, config: str, *more: str
    ) -> Call:
        folder.mkdir(parents=True, exist_ok=True)
        options = [*java_options()]
        if what.login is not None:
            config += what.login.properties(folder)
            options += what.login.java_options()
        properties = folder / "client.properties"
        properties.write_text(config)
        command = java_command(f"org.apache.kafka.tools.{tool}", *options)
        file = "--producer.config" if isinstance(what, Producing) else "--consumer.config"
        return Call([
            *command, "--bootstrap-server", what.bootstrap, "--topic", what.topic,
            "--max-messages", str(what.count), file, str(properties), *more,
        ], {})  # fmt: skip

    def acked(self, line: str) -> Acked | None:
        """See `Client`."""
        event = json.loads(line)
        if event["name"] != "producer_send_success":
            return None
        return Acked(int(event["value"].partition(".")[2]), event["partition"], event["offset"])

    def read(self, line: str) -> Read | None:
        """See `Client`."""
        event = json.loads(line)
        if event["name"] != "record_data":
            return None
        return _read(event["value"].partition(" ")[0], event["partition"], event["offset"])

    def said_version(self, lines: Sequence[str]) -> str:
        """See `Client`. The tools do not tell; the client's jar does."""
        jar = fetch_jars() / f"kafka-clients-{self.version}.jar"
        with zipfile.ZipFile(jar) as opened:
            text = opened.read("kafka/kafka-version.properties").decode()
        return next(line[8:] for line in text.splitlines() if line.startswith("version="))


def java_options() -> tuple[str, ...]:
    """Return the options of Kafka's tools and of programs with its client."""
    return (*short_lived(), "-Xmx256m")


def _read(identity: str, partition: int, offset: int) -> Read:
    stream, number = identity.split(".")
    return Read(int(stream), int(number), partition, offset)


def _python(module: str) -> Callable[[], Call]:
    return lambda: Call([sys.executable, "-m", f"tests.clients.programs.{module}"], {})


def _go(name: str) -> Callable[[], Call]:
    return lambda: Call([str(install.go_program(name))], {})


def _node() -> Call:
    script = Path(__file__).with_name("node") / "kafkajs.js"
    return Call(["node", str(script)], {"NODE_PATH": str(install.node_modules())})


#: Who reads back whose records: each client writes once, and reads what another one wrote.
LIBRDKAFKA = Client(
    "confluent-kafka", install.python_version_of("confluent-kafka"), _python("librdkafka")
)
AIOKAFKA = Client("aiokafka", install.python_version_of("aiokafka"), _python("aiokafka"))
JAVA = JavaClient()
FRANZ_GO = Client(
    "franz-go",
    install.go_version_of("github.com/twmb/franz-go"),
    _go("franzgo"),
    install.go_missing,
)
SARAMA = Client(
    "sarama", install.go_version_of("github.com/IBM/sarama"), _go("sarama"), install.go_missing
)
KAFKAJS = Client("kafkajs", install.node_version_of("kafkajs"), _node, install.node_missing)

READER = {
    LIBRDKAFKA: SARAMA,
    AIOKAFKA: KAFKAJS,
    JAVA: LIBRDKAFKA,
    FRANZ_GO: JAVA,
    SARAMA: AIOKAFKA,
    KAFKAJS: FRANZ_GO,
}

"""A real Kafka broker and controller in one process (KRaft combined mode)."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.fetching import fetch_once
from tests.servers.java import SHORT_LIVED
from tests.servers.kafka.install import fetch_jars, java_command, kafka_version
from tests.servers.kafka.template import Template, new_id
from tests.servers.process import ServerError, ServerProcess, in_short_test
from tests.servers.waiting import WAIT_S

_JVM_ALWAYS = ("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.showDateTime=true")
# The options of Kafka's own start script: benchmarks measure Kafka as people run it.
_JVM_AS_DEPLOYED = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
#: Where too few replicas are in sync it tries transactions' markers again without a rest, and would
#: log each time.
_QUIET = (
    "-Dorg.slf4j.simpleLogger.log.kafka.server.ReplicaManager=off",
    "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=warn",
)
# These make one node enough; everything else keeps Kafka's defaults.
_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",
}
FSYNC_EACH_BATCH: Mapping[str, str] = {"log.flush.interval.messages": "1"}


class KafkaServer:
    """A Kafka node: formats its storage, starts, and waits until it answers.

    with KafkaServer(tmp_path / "kafka", overrides=FSYNC_EACH_BATCH) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})
    """

    def __init__(
        self,
        directory: Path,
        *,
        heap: str = "512m",
        overrides: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        node_id: int = 1,
        start_timeout_s: float = WAIT_S,
        template: Template | None = None,
        version: str = "",
    ) -> None:
        """Choose the ports; nothing starts yet.

        Parameters:
            directory: for its data and its log.
            heap: of the JVM, as in -Xmx.
            overrides: further settings.
            listeners: names and protocols (such as SASL_SSL) of further listeners.
            template: filled by this server.
            version: of Kafka; empty: the version in pom.xml. It may be changed between starts.
        """
        self.node_id = node_id
        self.version = version
        #: All controllers, and the cluster's id, in a cluster of several nodes.
        self.voters = ""
        self.cluster_id = ""
        self.directory = directory.resolve()
        self.data_dir = self.directory / "data"
        self.heap = heap
        self.start_timeout_s = start_timeout_s
        self._template = template
        self._overrides = dict(overrides or {})
        self._protocols = dict(listeners or {})
        self._broker_port, self._controller_port, *others = free_ports(2 + len(self._protocols))
        #: The addresses of the further listeners, by name.
        self.listeners = {
            name: f"{LOOPBACK}:{port}" for name, port in zip(self._protocols, others, strict=True)
        }
        self.bootstrap = f"{LOOPBACK}:{self._broker_port}"
        #: Advertised addresses of further listeners, by name, if they differ: of a relay.
        self.advertised: dict[str, str] = {}
        self.process = ServerProcess(
            name="Kafka", log_path=self.directory / "kafka.log", cwd=self.directory
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def voter(self) -> str:
        """This node's entry in controller.quorum.voters."""
        return f"{self.node_id}@{LOOPBACK}:{self._controller_port}"

    def start(self) -> None:
        """Start with the data of an earlier start, and wait until it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not (self.data_dir / "meta.properties").exists():
            self._format(properties)
        options = (f"-Xms{self.heap}", f"-Xmx{self.heap}", *self._jvm_options(), *_JVM_ALWAYS)
        command = java_command("kafka.Kafka", *options, version=self.version)
        self.process.start([*command, str(properties)], os.environ)

    def wait(self) -> None:
        """Wait until it answers."""
        try:
            self.process.wait_until(self._answers, self.start_timeout_s)
        except BaseException:  # Ctrl-C, too: the caller does not have the server yet
            self.process.kill9()
            raise

    def stop(self, timeout_s: float = WAIT_S) -> None:
        """Shut it down cleanly: segments are closed and their indexes trimmed."""
        self.process.stop(timeout_s)

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Return the folder with a partition's segments."""
        return self.data_dir / f"{topic}-{partition}"

    def _write_properties(self) -> Path:
        broker = f"PLAINTEXT://{self.bootstrap}"
        controller = f"{LOOPBACK}:{self._controller_port}"
        others = [f"{name}://{address}" for name, address in self.listeners.items()]
        advertised = {**self.listeners, **self.advertised}
        settings = {
            **_SINGLE_NODE,
            "listeners": ",".join([broker, f"CONTROLLER://{controller}", *others]),
            "advertised.listeners": ",".join(
                [broker, *(f"{name}://{address}" for name, address in advertised.items())]
            ),
            "listener.security.protocol.map": ",".join(
                [
                    "PLAINTEXT:PLAINTEXT",
                    "CONTROLLER:PLAINTEXT",
                    *(f"{name}:{protocol}" for name, protocol in self._protocols.items()),
                ]
            ),
            "node.id": str(self.node_id),
            "controller.quorum.voters": self.voters or self.voter,
            "log.dirs": str(self.data_dir),
            **self._overrides,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _jvm_options(self) -> tuple[str, ...]:
        if self._template is not None:
            return (*SHORT_LIVED, *self._template.classes.writing_options)
        if in_short_test():
            # The archive of loaded classes fits the jars of the pom's version only.
            return (*_QUIET, *(SHORT_LIVED if self.version else short_lived()))
        return _JVM_AS_DEPLOYED

    def _format(self, properties: Path) -> None:
        cluster_id = self.cluster_id or new_id()
        if self._template is None and in_short_test() and not self.version:
            _filled_template().copy_storage(self.data_dir, self.node_id, cluster_id)
            return
        done = subprocess.run(
            [
                *java_command("kafka.tools.StorageTool", version=self.version),
                *("format", "-t", cluster_id, "-c", str(properties)),
            ],
            capture_output=True,
            text=True,
            timeout=self.start_timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"Kafka could not format its storage:\n{done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        # librdkafka would print every refused connection while the broker comes up.
        quiet = logging.getLogger(f"{__name__}.waiting")
        quiet.setLevel(logging.CRITICAL)
        admin = AdminClient({"bootstrap.servers": self.bootstrap}, logger=quiet)
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False


def short_lived() -> tuple[str, ...]:
    """Return the options of a JVM that runs a Kafka or one of its tools for seconds."""
    return (*SHORT_LIVED, *_filled_template().classes.reading_options)


@cache
def _filled_template() -> Template:
    jars = fetch_jars()
    folder = jars.with_name("kafka-classes")
    # The archive is valid for these jars only: Java compares their times.
    marker = folder / f"{kafka_version()}-{jars.stat().st_mtime_ns}"
    fetch_once(folder, marker.is_file, lambda aside: _fill_template(aside, marker.name))
    return Template(folder)


def _fill_template(aside: Path, marker: str) -> Path:
    folder = aside / "template"
    folder.mkdir()
    template = Template(folder)
    with KafkaServer(aside / "kafka", template=template) as kafka:
        template.take_storage(kafka.data_dir)
        kafka.stop()  # the archive is written at its exit
    (folder / marker).touch()
    return folder

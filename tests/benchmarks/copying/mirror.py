"""MirrorMaker 2 from Maven, for one flow."""

from __future__ import annotations

from pathlib import Path

from tests.servers.java import Jars

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="mirror-jars",
    marker="connect-mirror-{version}.jar",
    prefix="kafka",
)
_OPTIONS = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def unavailable_reason() -> str | None:
    """Why it cannot run on this machine; None if it can."""
    return _JARS.unavailable_reason()


def java_command() -> list[str]:
    """The command, but for the file of properties."""
    return _JARS.command("org.apache.kafka.connect.mirror.MirrorMaker", *_OPTIONS)


def write_properties(folder: Path, source: str, destination: str, topic: str) -> Path:
    """The file of properties of a flow from one cluster to another; only what it has to have.

    Parameters:
        folder: where it goes.
        source: HOST:PORT of it,
        destination: and of the other one.
        topic: what is copied.
    """
    settings = {
        "clusters": "source, destination",
        "source.bootstrap.servers": source,
        "destination.bootstrap.servers": destination,
        "source->destination.enabled": "true",
        "source->destination.topics": topic,
        "destination->source.enabled": "false",
        "tasks.max": "4",
        # One broker; its defaults are for three.
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        # What is measured is the copy of records.
        "emit.heartbeats.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "consumer.auto.offset.reset": "earliest",
    }
    path = folder / "mirror.properties"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path

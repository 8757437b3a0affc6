"""Kafka's jars, and the commands that run them."""

from pathlib import Path

from tests.servers.java import Jars

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="kafka-jars",
    marker="kafka_2.13-{version}.jar",
    prefix="kafka",
)

fetch_jars = _JARS.fetch
unavailable_reason = _JARS.unavailable_reason
java_command = _JARS.command


def kafka_version() -> str:
    """Return the version in pom.xml."""
    return _JARS.version

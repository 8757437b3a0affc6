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


def java_command(main_class: str, *jvm_options: str, version: str = "") -> list[str]:
    """Return the command up to and with the class name; the caller appends arguments.

    Parameters:
        version: of Kafka; empty: the version in pom.xml.
    """
    return _JARS.of_version(version).command(main_class, *jvm_options)


def kafka_version() -> str:
    """Return the version in pom.xml."""
    return _JARS.version

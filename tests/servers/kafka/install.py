"""Where Kafka's jars and a Java to run them come from."""

from pathlib import Path

from tests.servers.java import Jars, JavaUnavailableError

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="kafka-jars",
    marker="kafka_2.13-{version}.jar",
    prefix="kafka",
)

#: This machine lacks what a real Kafka needs; the message says what to install.
KafkaUnavailableError = JavaUnavailableError


def kafka_version() -> str:
    """The version in pom.xml."""
    return _JARS.version


def fetch_jars() -> Path:
    """The folder with Kafka's jars, filled on first use."""
    return _JARS.fetch()


def unavailable_reason() -> str | None:
    """Why no Kafka can be started on this machine; None if one can."""
    return _JARS.unavailable_reason()


def java_command(main_class: str, *jvm_options: str) -> list[str]:
    """The command up to and with the class name; the caller appends its arguments."""
    return _JARS.command(main_class, *jvm_options)

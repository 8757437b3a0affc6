"""docs/reference/kafka-api-versions.md: the versions of Kafka's APIs, served and sent."""

from typing import Final

from kio.schema.index import api_key_map

from deploy.reference.markdown_tables import NOTE, table
from pidlease.kafka.api import SENT_VERSIONS
from proxy.kafka.served_versions import SERVED_VERSIONS, advertised, forwarded_versions

_INTRODUCTION: Final = """\
The versions of Kafka's APIs that the Kafka listener serves, as ApiVersions lists them. The server closes the
connection on a request of another version, and logs it; only ApiVersions gets UNSUPPORTED_VERSION. Clients choose a
version by themselves.

- **Embedded log**: the versions served when the log is pidlease's own.
- **Kafka as the log**: the most that is served in front of a Kafka cluster. Of the APIs that are forwarded, those
  versions are served that all live brokers serve as well, also after an [upgrade of
  Kafka](../operate/upgrade.md#an-upgrade-of-kafka).
- **Sent**: the versions that pidlease itself sends to Kafka, as a server, as a producer, and as a copier.

ApiVersions lists Produce from version 0 on, as Kafka 4 does, because librdkafka compresses only then (KAFKA-18659).
Versions 0 to 2 are not served. No response of these versions carries a broker's address that clients would follow past
pidlease: therefore Produce ends at 9 and Fetch at 11 in front of Kafka.
"""
_ANY: Final = dict.fromkeys(api_key_map, (0, 1000))


def kafka_api_page() -> str:
    """Return the page."""
    embedded, forwarded = advertised(SERVED_VERSIONS), advertised(forwarded_versions(_ANY))
    rows = [
        (api_name(key), key, *(_versions(each.get(key)) for each in (embedded, forwarded, SENT_VERSIONS)))
        for key in sorted({*embedded, *forwarded, *SENT_VERSIONS})
    ]  # fmt: skip
    headings = ("API", "key", "embedded log", "Kafka as the log", "sent")
    return f"# Kafka API versions\n\n{NOTE}\n\n{_INTRODUCTION}\n{table(headings, rows)}"


def api_name(key: int) -> str:
    """Return the name of an API as Kafka writes it."""
    return "".join(word.capitalize() for word in api_key_map[key].split("_"))


def _versions(served: tuple[int, int] | None) -> str:
    if served is None:
        return ""
    lowest, highest = served
    return f"{lowest} to {highest}" if lowest < highest else str(lowest)

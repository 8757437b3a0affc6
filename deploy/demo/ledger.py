"""Keeps the records that a client was given, and its reports about them."""

from dataclasses import dataclass, field

from deploy.demo.rows import Record
from tests.crash.clients import ToSend


@dataclass
class Ledger:
    """The records of one client: given to it, acknowledged, failed.

    Attributes:
        offsets: of the acknowledged records, by key; -1 if the server no longer knew the offset.
        unacknowledged: keys of the records without a report.
    """

    name: str
    sent: list[Record] = field(default_factory=list)
    offsets: dict[bytes, int] = field(default_factory=dict)
    unacknowledged: set[bytes] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    @property
    def given_count(self) -> int:
        """The number of records given to the client."""
        return len(self.sent)

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledged records."""
        return len(self.offsets)

    def give(self, record: Record) -> ToSend:
        """Note a record that is given to the client now."""
        self.sent.append(record)
        self.unacknowledged.add(record.key)
        return ToSend(record.topic, record.partition, record.key, record.value)

    def delivered(self, key: bytes, offset: int) -> None:
        """Note an acknowledgement."""
        self.offsets[key] = offset
        self.unacknowledged.discard(key)

    def failed(self, key: bytes, reason: str) -> None:
        """Note a failed delivery."""
        self.unacknowledged.discard(key)
        self.failures.append(f"{self.name}: {key.decode() or 'client'}: {reason}")

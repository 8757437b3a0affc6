"""What one client was given and what it said about it: the clients' own word, nothing else's."""

from dataclasses import dataclass, field

from deploy.demo.rows import Record


@dataclass
class Ledger:
    """The books of one client.

    Attributes:
        client: whose.
        sent: what it was given, in this order.
        offsets: what it reported as delivered, and where; -1 where the server no longer knew.
        unacknowledged: keys of what it was given and has not reported on.
        failures: deliveries that it gave up; there must be none.
    """

    client: str
    sent: list[Record] = field(default_factory=list)
    offsets: dict[bytes, int] = field(default_factory=dict)
    unacknowledged: set[bytes] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def give(self, record: Record) -> None:
        """The client gets this record now."""
        self.sent.append(record)
        self.unacknowledged.add(record.key)

    def delivered(self, key: bytes, offset: int) -> None:
        """The client says that the server has it."""
        self.unacknowledged.discard(key)
        self.offsets[key] = offset

    def failed(self, key: bytes, reason: str) -> None:
        """The client says that it will not get there."""
        self.unacknowledged.discard(key)
        self.failures.append(f"{self.client}: {key.decode() or 'client'}: {reason}")

"""The input: the rows of three data sets of vega_datasets, as records for two clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle
from typing import Final

TOPICS: Final = ("airports", "seattle-temps", "sf-temps")
CLIENTS: Final = ("librdkafka", "aiokafka")
PARTITIONS: Final = 4
#: Rows of the three data sets together, in vega_datasets 0.9.0.
ROWS: Final = 20_894


@dataclass(frozen=True, slots=True)
class Record:
    """One row to send, as JSON.

    Attributes:
        partition: chosen here, so that the order is known before the row is sent.
        number: counts the client's records, from 0.
    """

    client: str
    topic: str
    partition: int
    number: int
    value: bytes

    @property
    def key(self) -> bytes:
        """The record's key, which keeps equal rows apart (of an hour when clocks are set back)."""
        return b"%s-%05d" % (self.client.encode(), self.number)


def load_records() -> dict[str, list[Record]]:
    """Return all rows, by client; each client gets rows of each topic, in their order."""
    return deal({topic: _rows_of(topic) for topic in TOPICS})


def repeated() -> Iterator[Record]:
    """Yield all rows for one client, again and again; the numbers go on."""
    rows = [row for rows in load_records().values() for row in rows]
    rows.sort(key=lambda row: (row.number, row.client))
    for number, row in zip(count(), cycle(rows), strict=False):
        yield Record(CLIENTS[0], row.topic, row.partition, number, row.value)


def deal(rows: dict[str, list[bytes]]) -> dict[str, list[Record]]:
    """Share each topic's rows between the clients, and mix the topics evenly over the run."""
    records: dict[str, list[Record]] = {client: [] for client in CLIENTS}
    places = [
        ((index + 0.5) / len(values), topic, index)
        for topic, values in rows.items()
        for index in range(len(values))
    ]
    for _, topic, index in sorted(places):
        turn, place = divmod(index, len(CLIENTS))
        mine = records[CLIENTS[place]]
        mine.append(Record(CLIENTS[place], topic, turn % PARTITIONS, len(mine), rows[topic][index]))
    return records


def _rows_of(topic: str) -> list[bytes]:
    from vega_datasets import local_data  # noqa: PLC0415 - it loads pandas

    frame = local_data(topic)
    text: str = frame.to_json(orient="records", lines=True, date_format="iso")
    return text.encode().splitlines()

"""The real input: three data sets of vega_datasets, as records for two clients."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vega_datasets import local_data

TOPICS: Final = ("airports", "seattle-temps", "sf-temps")
CLIENTS: Final = ("librdkafka", "aiokafka")
PARTITIONS: Final = 4
#: So many rows the three data sets of vega_datasets 0.9.0 have together.
ROWS: Final = 20_894


@dataclass(frozen=True, slots=True)
class Record:
    """One row on its way.

    Attributes:
        client: who sends it.
        topic: the data set that it is of.
        partition: where it goes; chosen here, so that the order is known before it is sent.
        number: its place in what this client sends.
        value: the row as JSON.
    """

    client: str
    topic: str
    partition: int
    number: int
    value: bytes

    @property
    def key(self) -> bytes:
        """Names this record: equal rows (a clock set back an hour) stay apart when counted."""
        return b"%s-%05d" % (self.client.encode(), self.number)


def load_records() -> dict[str, list[Record]]:
    """All rows, dealt out to the clients; every topic gets rows of both, all of the time."""
    return deal({topic: _rows_of(topic) for topic in TOPICS})


def deal(rows: dict[str, list[bytes]]) -> dict[str, list[Record]]:
    """Give every client its share of each topic, the topics mixed evenly over the whole run.

    Parameters:
        rows: JSON rows of each topic.
    """
    records: dict[str, list[Record]] = {client: [] for client in CLIENTS}
    for topic, index in _mixed({topic: len(values) for topic, values in rows.items()}):
        turn, place = divmod(index, len(CLIENTS))
        mine = records[CLIENTS[place]]
        mine.append(Record(CLIENTS[place], topic, turn % PARTITIONS, len(mine), rows[topic][index]))
    return records


def _mixed(lengths: dict[str, int]) -> Iterable[tuple[str, int]]:
    """(topic, index of its row), so that all topics begin and end together."""
    places = [
        ((index + 0.5) / length, topic, index)
        for topic, length in lengths.items()
        for index in range(length)
    ]
    return ((topic, index) for _, topic, index in sorted(places))


def _rows_of(topic: str) -> list[bytes]:
    frame = local_data(topic)
    text: str = frame.to_json(orient="records", lines=True, date_format="iso")
    return text.encode().splitlines()

"""Load a CSV or Parquet file into a topic: each row exactly once, even after crashes.

    python examples/csv_to_kafka.py orders.csv --topic orders --name orders-2026-05 --key customer

Each row becomes a JSON object. After a crash of this process, of its machine or of the server, run
the same command again, within a lease of the server (24 h by default) after the last row. The row's
number is its sequence_id: each partition continues after the last row that it has.

FILE.plan.json keeps what must not change between runs. Exit codes: 0 every row is in the log;
1 not finished, run it again; 2 it cannot continue, because rows would be lost or doubled.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet

from pidlease.client import BlockingProducer, ProducerError, partition_for_key

Row = dict[str, Any]

#: After so many rows, wait until all are in the log, and write that to the plan.
FLUSH_EVERY: Final = 10_000


class ImpossibleError(Exception):
    """Rows would be lost or doubled."""


def rows_of(file: Path) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header line, or of a Parquet file."""
    if file.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches():
                yield from batch.to_pylist()
    else:
        with file.open(newline="", encoding="utf-8") as text:
            yield from csv.DictReader(text)


def save(plan: dict[str, int], path: Path) -> None:
    """Replace the plan durably."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(plan, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def load(given: argparse.Namespace, producer: BlockingProducer) -> int:
    """Send each row that is not in the log yet; return the number of rows of the file.

    Raises:
        ImpossibleError: the file, the topic or the server's state of the name has changed.
        ProducerError: a row was not stored; run the load again.
    """
    path = given.file.with_name(given.file.name + ".plan.json")
    partitions = len(producer.partitions_for(given.topic))
    plan = {"bytes": given.file.stat().st_size, "partitions": partitions, "stored": 0}
    first_run = not path.exists()
    if not first_run:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {**plan, "stored": found["stored"]} != found:
            raise ImpossibleError(f"the file or the topic has changed: was {found}, is {plan}")
        plan = found
    for partition in range(partitions):
        producer.lease(given.topic, partition)
    last = [producer.last_sequence_id(given.topic, each) for each in range(partitions)]
    if first_run and max(last) >= 0:
        raise ImpossibleError("another load has used this --name: choose a new one")
    if max(last) < plan["stored"] - 1:
        raise ImpossibleError(f"the server knows of {max(last) + 1} rows, {path} of more")
    save(plan, path)
    number = -1
    for number, row in enumerate(rows_of(given.file)):
        key = None if given.key is None else str(row[given.key]).encode()
        # The same partition in each run.
        partition = number % partitions if key is None else partition_for_key(key, partitions)
        if number > last[partition]:
            value = json.dumps(row, default=str).encode()
            producer.send(given.topic, value, key=key, partition=partition, sequence_id=number)
        if (number + 1) % FLUSH_EVERY == 0:
            producer.flush()  # raises if a row was not stored
            plan["stored"] = number + 1
            save(plan, path)
            print(f"{number + 1} rows are in the log", flush=True)
    producer.flush()
    plan["stored"] = number + 1
    save(plan, path)
    return number + 1


def main() -> int:
    """Load the file of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path, help="CSV with a header line, or *.parquet")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True, help="of this load; each file has its own")
    parser.add_argument("--key", help="column of the key; default: no key")
    servers = os.environ.get("PIDLEASE_SERVERS", "127.0.0.1:9092")
    parser.add_argument("--servers", default=servers, help="the Kafka listener")
    url = os.environ.get("PIDLEASE_URL", "http://127.0.0.1:8080")
    parser.add_argument("--leases", default=url, help="the HTTP listener")
    given = parser.parse_args()
    try:
        with BlockingProducer(
            bootstrap_servers=given.servers,
            leases=given.leases,
            name=given.name,
            # The server keeps these numbers for a lease after the last row. With policy strict, the
            # lease begins with the first row, and only a running producer replaces it in time.
            policy="monotonic",
        ) as producer:
            rows = load(given, producer)
    except (ImpossibleError, KeyError, ValueError) as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 2
    except (ProducerError, OSError) as error:
        print(f"not finished, run the same command again: {error}", file=sys.stderr)
        return 1
    print(f"{rows} rows, each in the log once")
    return 0


if __name__ == "__main__":
    sys.exit(main())

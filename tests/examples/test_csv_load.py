"""examples/csv_to_kafka.py: each row once, over kill -9 of it and of the server."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from pidlease.client import partition_for_key
from tests.crash.readback import consume
from tests.crash.seeds import new_random
from tests.examples.programs import (
    EXAMPLES,
    SLOW,
    check_once,
    outcome,
    program,
    wait_for_records,
)
from tests.servers.pidlease import PidleaseServer

_ROWS = 12_000
_PROGRAM = str(EXAMPLES / "csv_to_kafka.py")


def _command(server: PidleaseServer, file: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, _PROGRAM, str(file), "--topic", "orders", "--name", "orders-2026-05"),
        *("--servers", server.bootstrap, "--leases", server.http_url, *options),
    ]


def _table(rows: int) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {"order": list(numbers), "customer": [f"customer {each % 97}" for each in numbers]}
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_each_row_once_over_kill_9(tmp_path: Path, kind: str) -> None:
    random = new_random(f"csv-load-{kind}")
    file = tmp_path / f"orders.{kind}"
    table = _table(_ROWS)
    if kind == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pyarrow.parquet.write_table(table, file)
    with PidleaseServer(tmp_path / "server", settings=SLOW) as server:
        with program(*_command(server, file, "--key", "customer")) as load:
            wait_for_records(server, "orders", random.randint(1, _ROWS // 3))
            server.kill9()
            load.kill()
            assert outcome(load)[0] == -9, "it had ended before the kill"
        server.restart()
        for _ in range(2):  # the second run finds all rows in the log
            with program(*_command(server, file, "--key", "customer")) as load:
                code, output, errors = outcome(load)
                assert (code, errors) == (0, "")
                assert output.endswith(f"{_ROWS} rows, each in the log once\n")
        stored = consume(server.bootstrap, "orders", 3)
    as_stored = (lambda row: {**row, "order": str(row["order"])}) if kind == "csv" else dict
    due = [json.dumps(as_stored(row)).encode() for row in table.to_pylist()]
    check_once([each.value for each in stored], due)
    for partition in range(3):
        orders = [int(json.loads(each.value)["order"]) for each in stored
                  if each.partition == partition]  # fmt: skip
        assert orders == sorted(orders)
    assert all(each.partition == partition_for_key(each.key, 3) for each in stored)


def test_it_stops_where_rows_would_be_doubled(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order,customer\n1,a\n2,b\n")
    plan = tmp_path / "orders.csv.plan.json"
    with PidleaseServer(tmp_path / "server", settings={"fsync": "never"}) as server:
        for change, expected in (
            (lambda: None, (0, "2 rows, each in the log once\n", "")),
            (plan.unlink, (2, "", "stopped: another load has used this --name")),
            (
                lambda: plan.write_text(f'{{"bytes": {file.stat().st_size},'
                                        ' "partitions": 1, "stored": 9}'),
                (2, "", "stopped: the server knows of 2 rows"),
            ),
            (lambda: file.write_text("order,customer\n"), (2, "", "stopped: the file or the")),
        ):  # fmt: skip
            change()
            with program(*_command(server, file)) as load:
                code, output, errors = outcome(load)
            assert (code, output) == expected[:2]
            assert errors.startswith(expected[2]), errors
        assert len(consume(server.bootstrap, "orders", 1)) == 2

"""examples/copy_cluster.sh: each record once, over kill -9 of the copier and of the destination."""

import os
import signal
from pathlib import Path

from confluent_kafka import Producer

from tests.crash.readback import consume
from tests.crash.seeds import new_random
from tests.examples.programs import EXAMPLES, SLOW, check_once, outcome, program, wait_for_records
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

_RECORDS = 9_000


def _child(pid: int) -> int | None:
    """The pid of the copier that the script has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def test_each_record_once_over_kill_9(tmp_path: Path) -> None:
    random = new_random("cluster-copy")
    due = [f"order {number}".encode() for number in range(_RECORDS)]
    with (
        PidleaseServer(tmp_path / "a", settings={"fsync": "never", "default_partitions": "3"}) as a,
        PidleaseServer(tmp_path / "b", settings=SLOW) as b,
    ):
        producer = Producer({"bootstrap.servers": a.bootstrap, "enable.idempotence": True})
        for number, value in enumerate(due):
            producer.produce("orders", value, partition=number % 3)
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        script = str(EXAMPLES / "copy_cluster.sh")
        with program(
            script, a.bootstrap, b.bootstrap, b.http_url, "orders", "--session-seconds", "6"
        ) as copy:
            wait_for_records(b, "orders", random.randint(1, _RECORDS // 4))
            copier = _child(copy.pid)
            assert copier is not None
            b.kill9()
            os.kill(copier, signal.SIGKILL)
            until(lambda: _child(copy.pid) not in (None, copier), "another copier")
            b.restart()
            code, output, errors = outcome(copy)
        assert code == 0, errors
        assert "the copier was killed (exit code 137): starting it again" in errors
        assert f"equal {_RECORDS:,}, lost 0" in output
        check_once([each.value for each in consume(b.bootstrap, "orders", 3)], due)

"""kill -9 under a producer over HTTP: what was answered, and what was not, is stored once."""

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.lives import SETTINGS, server_in, verify
from tests.crash.readback import check_directory, consume
from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import producer
from tests.http_api.lives import answered, append, make_topic, read_back, send_only
from tests.servers.pidlease import PidleaseServer

#: How slow the disk is, in a life: so that there is more between a write and its answer.
_DISKS = ("", "", "slow=0.001 before fsync *.log 1", "slow=0.001 after write *.log 1")
_DELAY_S = 0.003


class Sender:
    """One producer of policy epoch, that sends one request behind the other.

    Attributes:
        due: the values that must be in the log, in order; of the last one it is not known.
        offsets: where the answered ones of this epoch are, by seq.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.due: list[str] = []
        self.offsets: dict[int, int] = {}

    def content(self, seq: int) -> str:
        return f"{self.epoch}/{seq}"

    def send(self, server: PidleaseServer) -> None:
        """A request that is answered."""
        value = self.content(self.seq)
        status, answer = append(server, value.encode(), producer("p", self.epoch, self.seq))
        assert (status, answer) == (200, {"offset": len(self.due), "duplicate": False})
        self.offsets[self.seq] = answer["offset"]
        self.due.append(value)
        self.seq += 1

    def resend(self, server: PidleaseServer, seq: int) -> bool:
        """A request for the second time; whether it had been stored."""
        value = self.content(seq)
        status, answer = append(server, value.encode(), producer("p", self.epoch, seq))
        assert status == 200, answer
        if seq in self.offsets:
            assert answer == {"offset": self.offsets[seq], "duplicate": True}, "it was answered"
            return True
        assert answer["offset"] == len(self.due)
        self.offsets[seq] = answer["offset"]
        self.due.append(value)
        self.seq = seq + 1
        return bool(answer["duplicate"])

    def begin_anew(self) -> None:
        """As its application does after a crash of its own."""
        self.epoch += 1
        self.seq = 0
        self.offsets = {}


@pytest.mark.timeout(3600 if SOAK else 900)
def test_kill_9_under_a_producer(tmp_path: Path) -> None:
    rounds = 200 if SOAK else 30
    random = new_random("http-kill9")
    sender = Sender()
    hits = {"not stored": 0, "stored, not answered": 0, "answered": 0}
    scale = 1.0
    with server_in(tmp_path) as server:
        server.restart({**SETTINGS, "fsync": "batch"})
        make_topic(server)
        for number in range(rounds + 20):
            both = hits["not stored"] and hits["stored, not answered"] + hits["answered"]
            if number >= rounds and both:
                break
            hit = _round(server, sender, random, scale * random.random() * _DELAY_S)
            hits[hit] += 1
            # Not everywhere do three milliseconds reach from before a write to behind it.
            scale *= 1.15 if hit == "not stored" else 0.9
            scale = min(max(scale, 0.2), 20.0)
        print(f"{sum(hits.values())} kills: {hits}; {len(sender.due)} records")
        assert hits["not stored"] > 0, "every kill came too late"
        assert hits["stored, not answered"] + hits["answered"] > 0, "every kill came too early"
        assert server.stop() == 0
        server.restart({**SETTINGS})
        found = [each.value.decode() for each in consume(server.bootstrap, "t", 1)]
        assert found == sender.due, "by the Kafka door as well"
        assert server.stop() == 0
        check_directory(server.data_dir)
        verify(server.data_dir)


def _round(server: PidleaseServer, sender: Sender, random: Random, delay_s: float) -> str:
    """One kill; where it hit."""
    if random.random() < 0.2:
        sender.begin_anew()
    for _ in range(random.randrange(1, 4)):
        sender.send(server)
    seq = sender.seq
    connection = send_only(server, sender.content(seq).encode(), producer("p", sender.epoch, seq))
    time.sleep(delay_s)
    server.kill9()
    was_answered = answered(connection)
    disk = random.choice(_DISKS)
    settings = {**SETTINGS, "fsync": "batch"}
    server.restart({**settings, "faults": disk} if disk else settings)
    assert sender.resend(server, seq - 1)
    was_stored = sender.resend(server, seq)
    assert was_stored or not was_answered, "it was answered, and is gone"
    assert read_back(server) == sender.due, "once, and in order"
    if was_answered:
        return "answered"
    return "stored, not answered" if was_stored else "not stored"

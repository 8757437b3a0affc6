"""lease_pid over HTTP, as the contract says it, for tests of the client without a server."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from pidlease.core.pid import Policy, make_pid
from pidlease.testing.loopback_ports import LOOPBACK

Place = tuple[str, int]


@dataclass
class Name:
    """What a name is bound to."""

    pid: int
    generation: int
    policy: str
    renewed: bool = False
    #: Where its own numbers go on, by partition.
    resume: dict[Place, int] = field(default_factory=dict)
    #: The PID before.
    former: int = -1

    def was_answered(self, pid: int, generation: int) -> bool:
        """Whether a renewal was granted, and nobody came since."""
        return (self.former, self.generation) == (pid, generation + 1)


class FakeLeases:
    """Grants leases; a context manager that listens on a port of its own.

    Attributes:
        lease_ms: how long a lease is.
        cluster_id: of the broker.
        away: so many requests are answered 503 from now on,
        loses_answers: although what they ask for is granted.
        high: H by (pid, topic, partition): the broker's.
        asked: every entry of every request.
    """

    def __init__(self, lease_ms: float = 3_600_000) -> None:
        self.lease_ms = lease_ms
        self.cluster_id = "fake"
        self.away = 0
        self.loses_answers = False
        self.high: dict[tuple[int, str, int], int] = {}
        self.generations: dict[tuple[int, str, int], int] = {}
        self.ends_at: dict[int, float] = {}
        self.names: dict[str, Name] = {}
        self.asked: list[dict[str, Any]] = []
        self.refusals: dict[Place, tuple[int, str]] = {}
        self.done: Counter[str] = Counter()
        self._count = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.url = f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ what a lease is

    def granted(self, pid: int) -> int:
        """The generation that was granted to a PID's name; -1: it has none."""
        return next((each.generation for each in self.names.values() if each.pid == pid), -1)

    def is_old(self, pid: int) -> bool:
        """Whether a name has got another PID instead."""
        return pid not in self.ends_at or time.monotonic() >= self.ends_at[pid]

    def stored(self, pid: int, place: Place, last: int, generation: int) -> None:
        """Told by the broker: H has moved."""
        self.high[(pid, *place)] = last
        self.generations[(pid, *place)] = generation
        for name in self.names.values():
            if name.pid == pid:
                name.resume[place] = last + 1

    def _fresh(self, policy: str) -> int:
        self._count += 1
        pid = make_pid(Policy[policy.upper()], self._count)
        self.ends_at[pid] = time.monotonic() + self.lease_ms / 1000
        return pid

    def _grant(self, entry: dict[str, Any], raised: set[str]) -> dict[str, Any]:
        place = entry["topic"], entry["partition"]
        if place in self.refusals:
            status, text = self.refusals[place]
            return {**_NOTHING, "topic": place[0], "partition": place[1],
                    "error": text, "status": status}  # fmt: skip
        pid, generation = entry["pid"], 1000
        name = entry.get("name")
        held = pid, entry.get("generation", -1)
        again = name in self.names and self.names[name].was_answered(*held)
        if again:
            raised.add(str(name))
        if name is not None and pid >= 0 and name not in raised and held != self._has(name):
            self.done["taken"] += 1
            return {**_NOTHING, "topic": place[0], "partition": place[1],
                    "error": "another one was granted the name", "status": 409}  # fmt: skip
        if name is not None:
            bound = self._bound(name, entry, raised)
            pid, generation = bound.pid, bound.generation
        elif pid < 0:
            pid = self._fresh(entry.get("policy", "strict"))
            self.done["fresh"] += 1
        elif self.is_old(pid):
            return {**_NOTHING, "topic": place[0], "partition": place[1],
                    "error": f"PID {pid} has ended", "status": 410}  # fmt: skip
        else:
            self.done["known"] += 1
            generation = self.granted(pid)
            if generation < 0:
                generation = self.generations.get((pid, *place), 999) + 1
        following = self.high.get((pid, *place), -1) + 1
        resume = [each.resume.get(place, 0) for each in self.names.values() if each.pid == pid]
        left_ms = (self.ends_at[pid] - time.monotonic()) * 1000
        return {
            "topic": place[0], "partition": place[1], "error": "", "status": 200, "pid": pid,
            "generation": generation, "sequence_number": following,
            "resume_at": max([following, *resume]),
            "expire_ms": int(time.time() * 1000 + left_ms), "name": name,
            "cluster_id": self.cluster_id,
        }  # fmt: skip

    def _has(self, name: str) -> tuple[int, int]:
        bound = self.names[name]
        return bound.pid, bound.generation

    def _bound(self, name: str, entry: dict[str, Any], raised: set[str]) -> Name:
        bound = self.names.get(name)
        if bound is None:
            policy = entry.get("policy", "strict")
            bound = self.names[name] = Name(self._fresh(policy), 7, policy)
        if name in raised:
            return bound
        raised.add(name)
        bound.generation += 1
        self.done["raised"] += 1
        if entry.get("renew") or self.is_old(bound.pid):
            if not entry.get("renew"):
                bound.generation += 1  # so that who renewed can be told from who took over
            bound.former = bound.pid
            self.ends_at[bound.pid] = 0  # nobody writes under it any more
            bound.pid = self._fresh(bound.policy)
            self.done["renewed"] += 1
        return bound

    # ------------------------------------------------------------------ HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length:")[2].split()[0])
                body = json.loads(await reader.readexactly(size))
                status, answer = self._answer(head.split()[1], body)
                data = json.dumps(answer).encode()
                front = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n"
                writer.write(f"{front}content-length: {len(data)}\r\n\r\n".encode() + data)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    def _grant_all(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        entries = body.get("leases", [body])
        self.asked += entries
        raised: set[str] = set()
        return [self._grant(entry, raised) for entry in entries]

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.away:
            self.away -= 1
            self.done["away"] += 1
            if self.loses_answers:
                self._grant_all(body)
            return 503, {"error": "not now", "field": None}
        answers = self._grant_all(body)
        if path != "/v1/leases":
            return 200, {"leases": answers}
        if answers[0]["error"]:
            return answers[0]["status"], {"error": answers[0]["error"], "field": "pid"}
        return 200, answers[0]


_NOTHING = {"pid": -1, "generation": -1, "sequence_number": -1, "resume_at": -1, "expire_ms": -1}

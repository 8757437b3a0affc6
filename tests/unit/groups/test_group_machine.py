"""A group under random members, a slow disk and crashes.

What must hold at every step: a generation has one assignment, whatever fails; who is of an older
generation, or of a life before, never commits; who waits is answered once. And what must come
about: when nothing fails any more, all who are there have an assignment of the same generation.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group import Group, State
from proxy.kafka.groups.group_steps import (
    Answer,
    GroupLimits,
    Join,
    JoinAnswer,
    MemberIdentity,
    Store,
    Sync,
    SyncAnswer,
)
from tests.property.profile import examples

PARTITIONS = 6
SESSION_MS = 1_000
REBALANCE_MS = 3_000
PROTOCOLS = [(("a", b"1"), ("b", b"1")), (("b", b"2"), ("a", b"2")), (("a", b"3"),)]


@dataclass
class Client:
    """A consumer, as clients are: it does what the answers tell it to."""

    number: int
    instance: str | None
    new: bool
    protocols: Any
    member_id: str = ""
    generation: int = -1
    life: int = 0
    waits: str = ""
    leads: bool = False
    members: tuple[str, ...] = ()
    assignment: bytes | None = None

    def forget(self) -> None:
        """It begins anew."""
        self.member_id = "" if self.instance is None else self.member_id
        self.generation = -1
        self.assignment = None


@dataclass
class Disk:
    """What is stored; the rest is on its way."""

    generation: int = 0
    protocol_type: str | None = None
    queue: list[tuple[Group, int]] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    """Clients of one group, and a server that may crash."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.life = 0
        self.numbers = 0
        self.static_came = False
        self.disk = Disk()
        self.clients: list[Client] = []
        self.waiting: dict[str, tuple[Client, str]] = {}
        #: Generation -> member -> what it was told to read. Over all lives.
        self.told: dict[int, dict[str, bytes]] = {}
        #: Generation -> what leaders said of it.
        self.given: dict[int, list[dict[str, bytes]]] = {}
        self.limits = GroupLimits()
        self.group = self._start()

    @initialize(delay=st.sampled_from([0, 500]), size=st.sampled_from([3, 100]))
    def begin(self, delay: int, size: int) -> None:
        self.limits = GroupLimits(initial_rebalance_ms=delay, members_max=size)
        self.group = self._start()

    def _start(self) -> Group:
        return Group("g", self.limits, self._new_id, self.disk.generation, self.disk.protocol_type)

    def _new_id(self) -> str:
        self.numbers += 1
        return str(self.numbers)

    # ------------------------------------------------------------------ clients

    @rule(
        instance=st.sampled_from([None, None, "one", "two"]),
        new=st.booleans(),
        protocols=st.sampled_from(PROTOCOLS),
    )
    def a_client_comes(self, instance: str | None, new: bool, protocols: Any) -> None:
        if len(self.clients) < 6:
            client = Client(len(self.clients), instance, new, protocols)
            self.static_came |= instance is not None
            self.clients.append(client)
            self._join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_client_vanishes(self, data: st.DataObject) -> None:
        """Without a word; what it waited for is answered to nobody."""
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.group.leave(self.now, [MemberIdentity(client.member_id, client.instance)])
        self._drain()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS))
    def a_client_joins_again(self, data: st.DataObject, protocols: Any) -> None:
        """Also while it waits: its connection was lost."""
        client = data.draw(st.sampled_from(self.clients))
        client.protocols = protocols
        self._join(client)

    @precondition(lambda self: any(each.generation >= 0 for each in self.clients))
    @rule(data=st.data())
    def a_client_syncs(self, data: st.DataObject) -> None:
        joined = [each for each in self.clients if each.generation >= 0]
        self._sync(data.draw(st.sampled_from(joined)))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_client_commits(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        code = self.group.commit(self.now, client.member_id, client.instance, client.generation)
        old = client.life != self.life or client.generation != self.group.generation
        if client.generation >= 0:
            assert code != ErrorCode.none or not old, "a member of an older generation committed"
        if code == ErrorCode.none and client.generation >= 0:
            assert client.member_id in self.group.members.by_id
        elif code == ErrorCode.none:
            assert self.group.state is State.EMPTY

    @rule(ms=st.sampled_from([1, 300, 900, 1_100, 4_000]), talk=st.booleans())
    def time_goes_on(self, ms: int, talk: bool) -> None:
        if talk:
            self._heartbeats()
        self._until(self.now + ms)

    # ------------------------------------------------------------------ the server

    @precondition(lambda self: self.disk.queue)
    @rule(failed=st.sampled_from([False, False, False, True]))
    def the_disk_answers(self, failed: bool) -> None:
        self._disk(failed=failed)

    @rule(some=st.booleans())
    def the_server_crashes(self, some: bool) -> None:
        """What is on its way to the disk is there or not."""
        for group, generation in self.disk.queue if some else ():
            self._keep(group, generation)
        self.disk.queue.clear()
        self.waiting.clear()
        self.life += 1
        for client in self.clients:
            client.waits = ""
        self.group = self._start()

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def a_waiting_member_is_a_member(self) -> None:
        members = self.group.members
        assert members.joining == sum(each.join is not None for each in members.by_id.values())
        assert (members.leader in members.by_id) == bool(members.by_id)
        assert set(members.static.values()) <= set(members.by_id)
        assert (members.size_bytes > 0) == bool(members.by_id or members.pending)
        if self.group.state in (State.EMPTY, State.DEAD):
            assert not members.by_id

    def teardown(self) -> None:
        """From now on nothing fails, and everybody who is there goes on asking."""
        for _ in range(60):
            for client in list(self.clients):
                if not client.waits:
                    self._go_on(client)
            while self.disk.queue:
                self._disk(failed=False)
            self._heartbeats()
            self._until(self.now + SESSION_MS // 3)
        fitting = [each for each in self.clients if each.generation >= 0]
        if not self.clients:
            self._until(self.now + 20 * REBALANCE_MS)
            while self.disk.queue:
                self._disk(failed=False)
            assert self.group.is_idle
            return
        assert fitting
        assert self.group.state is State.STABLE
        assert {each.generation for each in fitting} == {self.group.generation}
        assert all(each.assignment is not None for each in fitting)
        read = [number for each in fitting for number in each.assignment or b""]
        assert sorted(read) == list(range(PARTITIONS)), "not each partition is read by one"
        self.group.close(ErrorCode.not_coordinator)
        self._drain()
        assert not self.waiting, "somebody waits for ever"

    # ------------------------------------------------------------------ helpers

    def _token(self, client: Client, what: str) -> str:
        self.numbers += 1
        token = f"{what} {self.numbers}"
        self.waiting[token] = (client, what)
        client.waits = token
        return token

    def _join(self, client: Client) -> None:
        request = Join(
            client.member_id, client.instance, "c", "h", "consumer", client.protocols,
            SESSION_MS, REBALANCE_MS, requires_member_id=client.new, skips_assignment=client.new,
        )  # fmt: skip
        self.group.join(self.now, request, self._token(client, "join"))
        self._drain()

    def _sync(self, client: Client) -> None:
        assignments: dict[str, bytes] = {}
        if client.leads:
            for number in range(PARTITIONS):
                member = client.members[(number + self.numbers) % len(client.members)]
                assignments[member] = assignments.get(member, b"") + bytes([number])
            self.given.setdefault(client.generation, []).append(assignments)
        request = Sync(
            client.member_id, client.instance, client.generation, "consumer", None, assignments
        )
        self.group.sync(request, self._token(client, "sync"))
        self._drain()

    def _go_on(self, client: Client) -> None:
        if client.generation < 0:
            self._join(client)
        elif client.assignment is None:
            self._sync(client)

    def _heartbeats(self) -> None:
        for client in self.clients:
            if client.generation >= 0 and not client.waits:
                code = self.group.heartbeat(
                    self.now, client.member_id, client.instance, client.generation
                )
                self._drain()
                self._told_code(client, code)

    def _told_code(self, client: Client, code: ErrorCode) -> None:
        if code == ErrorCode.none:
            return
        if code == ErrorCode.rebalance_in_progress:
            client.generation, client.assignment = -1, None
        elif code == ErrorCode.fenced_instance_id:
            self.clients.remove(client)  # another one has its name: it gives up
        else:
            client.member_id = ""
            client.forget()

    def _until(self, end: int) -> None:
        while self.group.wake_at <= end:
            self.now = max(self.now, int(self.group.wake_at))
            self.group.advance(self.now)
            self._drain()
            assert self.group.wake_at > self.now
        self.now = end

    def _disk(self, *, failed: bool) -> None:
        group, generation = self.disk.queue.pop(0)
        if not failed:
            self._keep(group, generation)
        group.stored(self.now, generation, failed=failed)
        if failed and group.state is State.EMPTY and group.unsaved:
            self.disk.queue.append((group, generation))
        self._drain()

    def _keep(self, group: Group, generation: int) -> None:
        self.disk.generation = generation
        self.disk.protocol_type = group.members.protocol_type

    def _drain(self) -> None:
        while self.group.effects:
            effect = self.group.effects.pop(0)
            if isinstance(effect, Store):
                self.disk.queue.append((self.group, effect.generation))
                continue
            assert isinstance(effect, Answer)
            client, _ = self.waiting.pop(str(effect.waiter))  # answered once
            if isinstance(effect.answer, SyncAnswer):
                self._look_at_assignment(effect.answer, client)
            if client.waits == effect.waiter and client in self.clients:
                client.waits = ""
                self._take(client, effect.answer)

    def _look_at_assignment(self, answer: SyncAnswer, client: Client) -> None:
        if answer.error != ErrorCode.none:
            return
        told = self.told.setdefault(self.group.generation, {})
        before = told.setdefault(client.member_id, answer.assignment)
        assert before == answer.assignment, "two assignments in one generation"
        if not self.static_came:
            said = [each.get(client.member_id, b"") for each in self.given[self.group.generation]]
            assert answer.assignment in said, "no leader of this generation said that"
            # A static member that came back goes on with what its id before was told.
            read = [number for each in told.values() for number in each]
            assert len(set(read)) == len(read), "a partition is read by two"

    def _take(self, client: Client, answer: JoinAnswer | SyncAnswer) -> None:
        if isinstance(answer, SyncAnswer):
            if answer.error == ErrorCode.none:
                client.assignment = answer.assignment
            else:
                self._told_code(client, answer.error)
        elif answer.error == ErrorCode.member_id_required:
            client.member_id = answer.member_id
            self._join(client)
        elif answer.error == ErrorCode.none:
            client.member_id, client.generation = answer.member_id, answer.generation
            client.life, client.assignment = self.life, None
            client.leads = answer.leader == answer.member_id and not answer.skip_assignment
            client.members = tuple(each.member_id for each in answer.members)
        elif answer.error == ErrorCode.group_max_size_reached:
            self.clients.remove(client)
        else:
            self._told_code(client, answer.error)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = examples(150, steps=40)

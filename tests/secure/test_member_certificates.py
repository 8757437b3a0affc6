"""TLS among active servers: which certificates they accept of one another, and what follows."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Sized
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from starlette.requests import Request
from structlog.testing import capture_logs

from pidlease.coordination.members import Member
from pidlease.core.byte_budget import ByteBudget
from pidlease.core.liveness import PeerReport
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.member_pings import MemberPings
from pidlease.log.kafka.kafka_shared_journal import RegistrarAwayError
from pidlease.observability.repeated_lines import LINES
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.backends.registrar_requests import RegistrarRequests
from proxy.http.owner_requests import UNKNOWN_THERE, OwnerRequests
from proxy.http.ping_connection import HttpPings
from proxy.security.certificate_names import PrincipalMapper
from proxy.security.member_certificates import make_member_context
from proxy.security.security_config import MemberSecurity, SecurityError, TlsFiles
from proxy.security.server_certificates import ServerCertificates, make_context
from tests.client.harness import until
from tests.secure.test_tls import Pki, _expired
from tests.servers.authority import Certificate, needs_openssl

pytestmark = needs_openssl
_MEMBERS: Final = MemberSecurity(frozenset({"a", "b"}), LOOPBACK)
_MAPPER: Final = PrincipalMapper("RULE:^CN=([a-z]+)$/$1/")
_HERE: Final = f"IP:{LOOPBACK}"
_NOT_ACCEPTED: Final = "a server and this one do not accept each other"
#: Makes a certificate, and the file of the authorities.
_Make = Callable[[Pki, Path], tuple[Certificate, Path | None]]
_PINGED: Final = b'{"version":7,"silent":[],"returning":[],"abstains":false,"topics":0}'


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("members") / "files")


def _files(pki: Pki, certificate: Certificate, ca: Path | None = None) -> TlsFiles:
    return TlsFiles(*certificate, "", ca or pki.ca, "requested")


def _server(pki: Pki, name: str) -> ServerCertificates:
    certificate = pki.authority.issue(name, _HERE)
    return ServerCertificates(_files(pki, certificate), _MEMBERS, _MAPPER)


class Peer(NamedTuple):
    """The listener of a member."""

    member: Member
    requests: list[bytes]
    names: list[Any]
    connections: list[asyncio.StreamWriter]
    server: asyncio.Server


@asynccontextmanager
async def _listening(tls: ssl.SSLContext | None, status: str = "200 OK") -> AsyncIterator[Peer]:
    """A member that responds the same to all requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections.append(writer)
        peer.names.append(writer.get_extra_info("peercert"))
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                peer.requests.append(head)
                first = f"HTTP/1.1 {status}\r\ncontent-length: {len(_PINGED)}\r\n\r\n"
                writer.write(first.encode() + _PINGED)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0, ssl=tls)
    scheme, port = "http" if tls is None else "https", server.sockets[0].getsockname()[1]
    member = Member(2, "other:1", LOOPBACK, 1, f"{scheme}://{LOOPBACK}:{port}", joined=1)
    peer = Peer(member, [], [], [], server)
    try:
        yield peer
    finally:
        for each in peer.connections:
            each.transport.abort()
        server.close()


class _Outcomes:
    """What became of pings."""

    def __init__(self) -> None:
        self.found: list[PeerReport | str | None] = []

    def answered(self, report: PeerReport | None) -> None:
        self.found.append(report)

    def refused(self) -> None:
        self.found.append("refused")


def _are(found: Sized, count: int) -> bool:
    return len(found) == count


async def _is_silent(member: Member, tls: ssl.SSLContext | None) -> str:
    """Ping a member that has no answer by this; return the reason in the log."""
    outcomes = _Outcomes()
    pings = HttpPings(member, outcomes, tls=tls)
    LINES.flush(everything=True)
    with capture_logs() as lines:
        pings.ping(5, 7)
        await until(lambda: pings._task is None)
    pings.close()
    assert outcomes.found == []
    (line,) = [each for each in lines if each["event"] == _NOT_ACCEPTED]
    assert (line["log_level"], line["server"]) == ("error", "other:1")
    return str(line["reason"])


async def _sent(member: Member, tls: ssl.SSLContext | None) -> Any:
    """The response to a request that is sent on to a member."""
    pings = MemberPings(1, None, lambda: None)
    shared: Any = SimpleNamespace(
        node_id=1, owner_of=lambda _: member, view=SimpleNamespace(members={2: member}), pings=pings
    )
    engine: Any = SimpleNamespace(shared_cluster=shared)
    owners = OwnerRequests(lambda: engine, tls)
    request = Request({
        "type": "http", "method": "POST", "path": "/", "query_string": b"", "scheme": "http",
        "server": ("here", 1), "headers": [],
    })  # fmt: skip
    try:
        return await owners.send_on(request, TopicPartition("t", 0), b"x", ByteBudget(1 << 20))
    finally:
        await owners.close()


async def test_each_knows_the_other_one(pki: Pki) -> None:
    a, b = _server(pki, "a"), _server(pki, "b")
    async with _listening(b.context) as peer:
        outcomes = _Outcomes()
        pings = HttpPings(peer.member, outcomes, tls=a.to_members)
        for count in range(1, 4):
            pings.ping(5, 7)
            await until(partial(_are, outcomes.found, count))
        assert outcomes.found == [PeerReport(7, [], [])] * 3
        assert (await _sent(peer.member, a.to_members)).body == _PINGED
        assert len(peer.connections) == 2
        assert [each["subject"] for each in peer.names] == [((("commonName", "a"),),)] * 2
        # The end of the process is missed at once, as without TLS.
        peer.server.close()
        peer.connections[0].transport.abort()
        await until(lambda: outcomes.found[3:] == ["refused"])
        pings.close()


def _of_another_authority(pki: Pki, folder: Path) -> tuple[Certificate, Path | None]:
    return Pki(folder / "other").authority.issue("a", _HERE), None


def _out_of_date(pki: Pki, _: Path) -> tuple[Certificate, Path | None]:
    return _expired(pki, _HERE), None


def _made(name: str, *addresses: str, usage: str = "") -> _Make:
    def make(pki: Pki, _: Path) -> tuple[Certificate, Path | None]:
        return pki.authority.issue(name, *addresses, usage=usage), None

    return make


@pytest.mark.parametrize(("make", "reason"), [
    (_of_another_authority, "unable to get local issuer certificate"),
    (_made("a", "IP:127.0.0.2", "DNS:localhost"), "IP address mismatch"),
    (_made("a", _HERE, usage="serverAuth"), "unsuitable certificate purpose"),
    (_made("a", _HERE, usage="clientAuth"), "unsuitable certificate purpose"),
    (_made("alice", _HERE), "of CN=alice is of none of --server-principals"),
    (_made("Mallory2", _HERE), "of CN=Mallory2 is of none of --server-principals"),
    (_out_of_date, "certificate has expired"),
])  # fmt: skip
def test_a_certificate_that_no_other_server_would_accept_is_refused(
    pki: Pki, tmp_path: Path, make: _Make, reason: str
) -> None:
    certificate, ca = make(pki, tmp_path)
    with pytest.raises(SecurityError, match=f"would not accept .*{reason}"):
        ServerCertificates(_files(pki, certificate, ca), _MEMBERS, _MAPPER)
    ServerCertificates(_files(pki, certificate, ca), None, _MAPPER)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_files_that_change_while_they_are_read(pki: Pki, tmp_path: Path, missing: int) -> None:
    """The listener's context could still be made of them."""
    files = _files(pki, pki.authority.issue("a", _HERE))
    listener = make_context(files)
    changes: dict[str, Any] = {("certificate", "key", "ca")[missing]: tmp_path / "absent"}
    changed = files._replace(**changes)
    with pytest.raises(SecurityError, match=r"absent.* cannot be used"):
        make_member_context(changed, listener, _MEMBERS, _MAPPER)


def test_one_for_both_uses_is_accepted(pki: Pki) -> None:
    certificate = pki.authority.issue("a", _HERE, usage="serverAuth,clientAuth")
    assert ServerCertificates(_files(pki, certificate), _MEMBERS, _MAPPER).to_members is not None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_member_that_is_not_accepted_is_silent_and_gets_no_request(
    pki: Pki, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """A client of the same authority that poses as a member; and servers of other authorities."""
    a = _server(pki, "a").to_members
    assert a is not None
    a.newest.maximum_version = version
    other = Pki(tmp_path / "other")
    client = _files(pki, pki.authority.issue("alice", _HERE))
    theirs = _files(other, other.authority.issue("b", _HERE))
    # Its own certificate is accepted, but it trusts another authority than ours.
    trusting = _files(pki, pki.authority.issue("b", _HERE), other.ca)
    for files, reason in (
        (client, "CN=alice is of none of --server-principals"),
        (theirs, "certificate verify failed"),
        (trusting, "unknown ca"),
    ):
        poser = ServerCertificates(files, None, _MAPPER)
        async with _listening(poser.context) as peer:
            assert reason in await _is_silent(peer.member, a)
            answer = await _sent(peer.member, a)
            assert answer.status_code == 503
            assert peer.requests == []


async def test_a_member_that_knows_no_such_server_is_silent(pki: Pki) -> None:
    """If it counted as one that answers, this one would give back slots that it has moved. And a
    client gets another status: it has a login, and the same request may be served later."""
    async with _listening(_server(pki, "b").context, "401 Unauthorized") as peer:
        own = _server(pki, "a").to_members
        assert await _is_silent(peer.member, own) == UNKNOWN_THERE
        answer = await _sent(peer.member, own)
        assert (answer.status_code, UNKNOWN_THERE in answer.body.decode()) == (503, True)


async def test_of_servers_with_and_without_tls_none_sends_to_the_other(pki: Pki) -> None:
    """Otherwise records would go in clear, or to a server that is not verified."""
    secured = _server(pki, "a")
    cases = ((None, secured.to_members, "TLS"), (secured.context, None, "no TLS"))
    for listener, tls, own in cases:
        async with _listening(listener) as peer:
            assert f"this server has {own}:" in await _is_silent(peer.member, tls)
            answer = await _sent(peer.member, tls)
            assert (answer.status_code, f"has {own}:" in answer.body.decode()) == (503, True)
            with pytest.raises(RegistrarAwayError, match=f"has {own}:"):
                await RegistrarRequests(tls).ask(peer.member.http_url, b"{}")
            assert peer.connections == []


async def test_new_files_count_for_new_connections(pki: Pki, tmp_path: Path) -> None:
    """One that others would not accept changes nothing, on the listener neither."""
    folder = tmp_path / "files"
    folder.mkdir()
    files = TlsFiles(folder / "c.pem", folder / "k.pem", "", folder / "ca.pem", "requested")

    def put(certificate: Certificate, ca: Path) -> None:
        for source, target in zip((*certificate, ca), (files.certificate, files.key, files.ca),
                                  strict=True):  # fmt: skip
            assert target is not None
            shutil.copy(source, target)

    async def works(peer: Peer) -> bool:
        return bool((await _sent(peer.member, own.to_members)).status_code == 200)

    put(pki.authority.issue("a", _HERE), pki.ca)
    own = ServerCertificates(files, _MEMBERS, _MAPPER)
    new = Pki(tmp_path / "new")
    after = ServerCertificates(_files(new, new.authority.issue("b", _HERE)), _MEMBERS, _MAPPER)
    async with _listening(_server(pki, "b").context) as old, _listening(after.context) as newer:
        assert (await works(old), await works(newer)) == (True, False)
        put(new.authority.issue("alice", _HERE), new.ca)
        with pytest.raises(SecurityError, match="none of --server-principals"):
            own.reload()
        assert (await works(old), await works(newer)) == (True, False)
        put(new.authority.issue("a", _HERE), new.ca)
        own.reload()
        assert (await works(old), await works(newer)) == (False, True)
        async with _listening(own.context) as listener:
            assert (await _sent(listener.member, after.to_members)).status_code == 200

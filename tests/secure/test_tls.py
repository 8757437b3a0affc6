"""TLS and client certificates on the Kafka listener, and their reload."""

import asyncio
import os
import resource
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pidlease.observability.repeated_lines import LINES
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.client_connection import KafkaConnection
from proxy.security.acls import Operation, ResourceKind
from proxy.security.certificate_names import (
    MappingRuleError,
    PrincipalMapper,
    distinguished_name,
)
from proxy.security.security_config import (
    ListenerSecurity,
    SecurityConfig,
    SecurityError,
    TlsFiles,
)
from proxy.security.server_certificates import make_context
from proxy.security.tls_acceptor import TlsAcceptor
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.member import until
from tests.kafka_listener.messages import METADATA
from tests.secure.secured import PASSWORDS, Secured, allow, plain, scram, secured
from tests.servers.authority import Authority, Certificate, needs_openssl

pytestmark = needs_openssl
_TLS = ListenerSecurity(tls=True)
_TLS_LOGIN = ListenerSecurity(tls=True, login=True)


class Pki:
    """The certificates of a server and its clients."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", "DNS:localhost", "IP:127.0.0.1")
        self.client = self.authority.issue("alice")
        self.ca = folder / "trusted.pem"
        shutil.copy(self.authority.root.certificate, self.ca)

    def files(self, client_auth: str = "none") -> TlsFiles:
        ca = self.ca if client_auth != "none" else None
        return TlsFiles(self.server.certificate, self.server.key, "", ca, client_auth)  # type: ignore[arg-type]

    def context(self, client: Certificate | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.root.certificate)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki") / "files")


async def _principal(running: Secured, client: WireClient) -> str:
    """The principal that a connection has, once a request was served on it."""
    assert (await client.metadata()).brokers
    port = client.writer.get_extra_info("sockname")[1]
    (found,) = [each for each in running.server.door.connections if str(port) in each.peer]
    assert isinstance(found, SecureConnection)
    assert found.caller is not None
    return found.caller.principal


async def _is_refused(running: Secured, context: ssl.SSLContext | None) -> bool:
    """Whether a client gets no answer: in TLS 1.3 it learns of it after the handshake."""
    try:
        async with await running.connect(context) as client:
            await client.metadata()
    except (OSError, asyncio.IncompleteReadError):
        return True
    return False


async def test_a_batch_over_tls(tmp_path: Path, pki: Pki) -> None:
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files())
    async with secured(tmp_path, config) as running:
        async with await running.connect(pki.context()) as client:
            assert await _principal(running, client) == "User:ANONYMOUS"
            await client.create("t")
            large = batch([bytes(900_000)])
            for offset in range(3):
                assert (await client.produce("t", large)).offset == offset
            assert len((await client.fetch("t", partition_max_bytes=1 << 20)).data) > 900_000
        assert await _is_refused(running, None)
        assert await _is_refused(running, ssl.create_default_context())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_of_tls_are_refused(
    tmp_path: Path, pki: Pki, version: ssl.TLSVersion
) -> None:
    context = pki.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files())
    async with secured(tmp_path, config) as running:
        assert await _is_refused(running, context)


async def test_plain_and_scram_over_tls(tmp_path: Path, pki: Pki) -> None:
    config = SecurityConfig(
        kafka=_TLS_LOGIN, tls_files=pki.files(), mechanisms=("PLAIN", "SCRAM-SHA-512")
    )
    async with secured(tmp_path, config) as running:
        async with await running.connect(pki.context()) as client:
            assert await plain(client, "alice", PASSWORDS["alice"]) == 0
            assert await _principal(running, client) == "User:alice"
        async with await running.connect(pki.context()) as client:
            assert await plain(client, "alice", PASSWORDS["bob"]) == 58
        async with await running.connect(pki.context()) as client:
            assert await scram(client, "bob", PASSWORDS["bob"], "SCRAM-SHA-512") == 0


async def test_a_client_certificate_is_a_login(tmp_path: Path, pki: Pki) -> None:
    """Attack 5: none, one of another authority, and an expired one are refused."""
    other = Pki(tmp_path / "other")
    expired = _expired(pki)
    config = SecurityConfig(
        kafka=_TLS, tls_files=pki.files("required"), acls=True,
        mapping_rules="RULE:^CN=([a-z]+)$/$1/",
    )  # fmt: skip
    acls = [allow("alice", Operation.ALL, ResourceKind.TOPIC, "t")]
    async with secured(tmp_path, config, acls) as running:
        async with await running.connect(pki.context(pki.client)) as client:
            assert await _principal(running, client) == "User:alice"
            await client.create("t")
            assert (await client.produce("t", batch([b"a"]))).code == 0
            assert (await client.produce("u", batch([b"a"]))).code == 29
        assert await _is_refused(running, pki.context())
        assert await _is_refused(running, pki.context(other.client))
        assert await _is_refused(running, pki.context(expired))
        # Of the trusted authority, but with a name that no rule maps.
        assert await _is_refused(running, pki.context(pki.authority.issue("Mallory2")))


@pytest.mark.parametrize(("version", "missing"), [
    (ssl.TLSVersion.TLSv1_2, "HANDSHAKE_FAILURE"), (ssl.TLSVersion.TLSv1_3, "CERTIFICATE_REQUIRED"),
])  # fmt: skip
async def test_a_client_learns_what_is_wrong_with_its_certificate(
    tmp_path: Path, pki: Pki, version: ssl.TLSVersion, missing: str
) -> None:
    """By an alert; and the log has the reason. In TLS 1.3 the client has sent a request by then."""
    other = Pki(tmp_path / "other")
    cases = [(None, missing, "the client has no certificate"),
             (other.client, "UNKNOWN_CA", "the client's certificate is not trusted"),
             (_expired(pki), "CERTIFICATE_EXPIRED", "certificate has expired")]  # fmt: skip
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files("required"))
    async with secured(tmp_path, config) as running:
        for certificate, alert, reason in cases:
            context = pki.context(certificate)
            context.maximum_version = version
            LINES.flush(everything=True)
            with capture_logs() as lines, pytest.raises(ssl.SSLError, match=alert):
                async with await running.connect(context) as client:
                    await client.metadata()
            failed = [each for each in lines if each["event"] == "a TLS handshake failed"]
            assert len(failed) == 1
            assert reason in failed[0]["reason"]
            assert failed[0]["peer"].startswith("('127.0.0.1', ")
        assert not running.server.door.connections


async def test_a_client_without_tls_gets_no_byte(tmp_path: Path, pki: Pki) -> None:
    """It would take an alert for the length of a response, and wait for that."""
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files("required"))
    async with secured(tmp_path, config) as running:
        LINES.flush(everything=True)
        with capture_logs() as lines:
            async with await running.connect(None) as client:
                client.send(METADATA, 1, topics=None)
                client.forget_last()
                assert await client.reader.read() == b""
        assert [each["event"] for each in lines] == ["a TLS handshake failed"]


async def test_a_handshake_that_takes_too_long(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.security.tls_acceptor._HANDSHAKE_SECONDS", 0.05)
    async with secured(tmp_path, SecurityConfig(kafka=_TLS, tls_files=pki.files())) as running:
        LINES.flush(everything=True)
        with capture_logs() as lines:
            async with await running.connect(None) as client:
                assert await client.reader.read() == b""
        assert [each["reason"] for each in lines] == ["it was not done in 0.05 s"]


async def test_connections_are_accepted_when_there_are_files_again(
    tmp_path: Path, pki: Pki
) -> None:
    """The one that could not be accepted as well: it waits for that."""
    async with secured(tmp_path, SecurityConfig(kafka=_TLS, tls_files=pki.files())) as running:
        LINES.flush(everything=True)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Without a pause in between: the server has not accepted the connection yet.
        client = socket.create_connection((LOOPBACK, running.server.port))
        next_file = os.dup(client.fileno())
        os.close(next_file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, limits[1]))
        try:
            with capture_logs() as lines:
                await until(lambda: bool(lines))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert lines[0]["event"] == "a connection could not be accepted"
        streams = await asyncio.open_connection(
            sock=client, ssl=pki.context(), server_hostname="localhost"
        )
        async with WireClient(*streams) as late, await running.connect(pki.context()) as other:
            assert (await late.metadata()).brokers
            assert (await other.metadata()).brokers


def _expired(pki: Pki, *addresses: str) -> Certificate:
    made = pki.authority.issue("expired", *addresses)
    request = made.certificate.with_suffix(".csr")
    command = ["openssl", "x509", "-req", "-in", request, "-out", made.certificate, "-days", "-1",
               "-CA", pki.authority.root.certificate, "-CAkey", pki.authority.root.key,
               "-CAcreateserial", "-extfile", made.certificate.with_suffix(".ext")]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this openssl makes no expired certificates")
    return made


async def test_certificates_are_reloaded(tmp_path: Path) -> None:
    """New connections get the new one, open ones stay; a broken file changes nothing."""
    pki = Pki(tmp_path / "pki")
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files("required"))
    async with secured(tmp_path, config) as running:
        context = pki.context(pki.client)
        async with await running.connect(context) as before:
            old = before.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            renewed = pki.authority.issue("renewed", "DNS:localhost")
            pki.server.key.write_bytes(renewed.key.read_bytes())
            pki.server.certificate.write_bytes(renewed.certificate.read_bytes())
            await running.security.reload()
            async with await running.connect(context) as after:
                new = after.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
                assert (await after.metadata()).brokers
            assert new != old
            assert (await before.metadata()).brokers
            good = pki.server.certificate.read_bytes()
            pki.server.certificate.write_text("broken")
            await running.security.reload()
            async with await running.connect(context) as after:
                assert (await after.metadata()).brokers
            pki.server.certificate.write_bytes(good)


async def test_a_new_certificate_that_could_not_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki(tmp_path / "pki")
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files("required"))
    async with secured(tmp_path, config) as running:
        certificates = running.security.certificates
        assert certificates is not None
        before = certificates._newest

        def fail(*_: object) -> ssl.SSLContext:
            raise SecurityError("cannot be used: too many open files")

        with monkeypatch.context() as full:
            full.setattr("proxy.security.server_certificates.make_context", fail)
            pki.server.certificate.write_bytes(pki.server.certificate.read_bytes() + b"\n")
            await running.security.reload(everything=False)
            assert certificates._newest is before
        await running.security.reload(everything=False)
        assert certificates._newest is not before


async def test_a_removed_authority_is_no_longer_trusted(tmp_path: Path) -> None:
    """Attack 5: also not for a client that resumes its session."""
    pki, other = Pki(tmp_path / "pki"), Pki(tmp_path / "other")
    roots = [each.authority.root.certificate.read_bytes() for each in (pki, other)]
    pki.ca.write_bytes(b"".join(roots))
    config = SecurityConfig(kafka=_TLS, tls_files=pki.files("required"))
    async with secured(tmp_path, config) as running:
        foreign = pki.context(other.client)
        foreign_12 = pki.context(other.client)
        foreign_12.maximum_version = ssl.TLSVersion.TLSv1_2
        sessions = []
        for context in (foreign, foreign_12):
            assert not await _is_refused(running, context)
            sessions.append(await asyncio.to_thread(_session, running.server.port, context, None))
        pki.ca.write_bytes(roots[0])
        await running.security.reload()
        for context, session in zip((foreign, foreign_12), sessions, strict=True):
            assert await _is_refused(running, context)
            with pytest.raises(OSError):  # noqa: PT011 - which one depends on the version
                await asyncio.to_thread(_session, running.server.port, context, session)
        assert not await _is_refused(running, pki.context(pki.client))


def _session(port: int, context: ssl.SSLContext, session: object) -> object:
    """Connect with a session, and return the new one."""
    import socket
    import struct

    from tests.kafka_listener.messages import METADATA, encode_request

    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain_socket,
        context.wrap_socket(plain_socket, server_hostname="localhost", session=session) as secure,  # type: ignore[arg-type]
    ):
        frame = encode_request(METADATA, 9, {"topics": ()})
        secure.sendall(struct.pack(">i", len(frame)) + frame)
        if not secure.recv(1):
            raise ConnectionError("closed")
        return secure.session


async def test_an_acceptor_that_breaks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its task: without the line, a port would be closed for no visible reason."""

    async def broken(_: socket.socket) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", broken)
    listening = socket.create_server((LOOPBACK, 0))
    with capture_logs() as lines:
        TlsAcceptor(listening, KafkaConnection, ssl.create_default_context())  # type: ignore[arg-type]
        await until(lambda: listening.fileno() < 0)
    (line,) = lines
    assert (line["event"], str(line["exc_info"])) == ("no more connections are accepted", "a bug")


def test_an_unusable_file_is_named(tmp_path: Path, pki: Pki) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\n")
    files = pki.files("required")
    for bad in (
        files._replace(certificate=tmp_path / "absent"), files._replace(certificate=broken),
        files._replace(key=pki.client.key), files._replace(ca=broken),
        files._replace(key=_encrypted(pki, tmp_path)),
        files._replace(key=_encrypted(pki, tmp_path), key_password="wrong"),
    ):  # fmt: skip
        with pytest.raises(SecurityError, match="cannot be used"):
            make_context(bad)
    make_context(files._replace(key=_encrypted(pki, tmp_path), key_password="right"))


def _encrypted(pki: Pki, folder: Path) -> Path:
    path = folder / "encrypted.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", pki.server.key, "-out", path,
         "-passout", "pass:right"],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@pytest.mark.parametrize(("rules", "name", "user"), [
    ("DEFAULT", "CN=a,OU=b", "CN=a,OU=b"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=a,OU=ServiceUsers,O=x", "a"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=a,OU=Others", None),
    ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L, DEFAULT", "CN=Ann,OU=B", "ann@b"),
    ("RULE:^cn=(.*?),ou=(.*?)$/$1@$2/L, DEFAULT", "CN=Ann,OU=B", "CN=Ann,OU=B"),
    ("RULE:^CN=([^,]*)$/$1/U", "CN=ann", "ANN"),
    (r"RULE:^CN=([^,]*)\/x$/$1\/y/", "CN=a/x", "a/y"),
    ("RULE:^CN=(.*)$/$1/", "CN=", None),
    # A crafted name: the whole must match, and a comma within a value is escaped.
    ("RULE:CN=admin/admin/", "CN=admin,O=evil", None),
    ("RULE:^CN=([^,\\\\]*),O=us$/$1/", "CN=admin\\,O\\=us,O=evil", None),
])  # fmt: skip
def test_mapping_rules(rules: str, name: str, user: str | None) -> None:
    assert PrincipalMapper(rules).user(name) == user


@pytest.mark.parametrize("rules", [
    "", "RULE", "RULE:a", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b/X", "DEFAULT DEFAULT",
    "DEFAULTS",
])  # fmt: skip
def test_wrong_mapping_rules(rules: str) -> None:
    with pytest.raises(MappingRuleError):
        PrincipalMapper(rules)


def test_a_distinguished_name_is_escaped() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "a,b=c+d"),),
               (("commonName", ' #x"\\ '),), (("userId", "u"), ("emailAddress", "m")))  # fmt: skip
    assert distinguished_name({"subject": subject}) == (
        'UID=u+emailAddress=m,CN=\\ #x\\"\\\\\\ ,O=a\\,b\\=c\\+d,C=DE'
    )

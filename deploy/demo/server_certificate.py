"""An authority of the demo's own, and a server's certificate that it has signed."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS: Final = timedelta(days=1)


def write_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Write a server's certificate, its key and the authority; return their paths."""
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name = _name("pidlease demo")
    root = _signed(
        _certificate(root_name, root_name, root_key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ),
        root_key,
    )
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("localhost")]
    )
    server = _signed(
        _certificate(_name("server"), root_name, key.public_key()).add_extension(
            addresses, critical=False
        ),
        root_key,
    )
    paths = folder / "server.pem", folder / "server.key", folder / "ca.pem"
    pem = serialization.Encoding.PEM
    paths[1].touch(mode=0o600)
    for path, content in zip(
        paths,
        (
            server.public_bytes(pem),
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            root.public_bytes(pem),
        ),
        strict=True,
    ):
        path.write_bytes(content)
    return paths


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - _DAYS, now + _DAYS
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    return builder.sign(key, hashes.SHA256())

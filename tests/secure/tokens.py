"""An issuer of JWTs for tests."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pidlease.testing.loopback_ports import LOOPBACK

ISSUER: Final = "https://issuer.test/"
AUDIENCE: Final = "pidlease"


class Issuer:
    """An issuer with an RSA key `rsa` and an EC key `ec`."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> bytes:
        keys = []
        for kid, algorithm, key in (
            ("rsa", "RS256", jwt.algorithms.RSAAlgorithm.to_jwk(self.rsa.public_key())),
            ("ec", "ES256", jwt.algorithms.ECAlgorithm.to_jwk(self.ec.public_key())),
        ):
            keys.append({**json.loads(key), "kid": kid, "alg": algorithm, "use": "sig"})
        return json.dumps({"keys": keys}).encode()

    def token(self, *, kid: str = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
        now = time.time()
        values = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, **claims}
        values = {name: value for name, value in values.items() if value is not None}
        key: Any = self.ec if algorithm.startswith("ES") else self.rsa
        return jwt.encode(values, key, algorithm=algorithm, headers={"kid": kid})

    def public_pem(self) -> bytes:
        return self.rsa.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


@contextmanager
def serving_keys(issuer: Issuer) -> Iterator[str]:
    """Serve an issuer's keys during the block; their URL."""

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = issuer.jwks()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Not to the console."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/keys"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unsigned(header: dict[str, Any], claims: dict[str, Any], key: bytes | None = None) -> str:
    """A token that no library makes: without a signature, or signed by HMAC with any key."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=")
             for each in (header, claims)]  # fmt: skip
    signed = b".".join(parts)
    signature = hmac.digest(key, signed, hashlib.sha256) if key is not None else b""
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()

"""Makes certificates for tests, by openssl."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates come from openssl"
)


class Certificate(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that only tests trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = self._made("root", "-x509", "-subj", "/CN=root")

    def issue(self, name: str, *addresses: str, subject: str = "", usage: str = "") -> Certificate:
        """Make a certificate for addresses, signed by the root.

        Parameters:
            name: of the files, and of the subject if that has no other.
            usage: extendedKeyUsage.
        """
        made = self._made(name, "-subj", f"/CN={subject or name}")
        extensions = self.folder / f"{name}.ext"
        only = f"extendedKeyUsage={usage}\n" if usage else ""
        extensions.write_text(f"subjectAltName={','.join(addresses) or 'DNS:none'}\n{only}")
        request = made.certificate.rename(self.folder / f"{name}.csr")
        self._run(
            *("x509", "-req", "-in", request, "-out", made.certificate, "-days", "1"),
            *("-CA", self.root.certificate, "-CAkey", self.root.key, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return made

    def _made(self, name: str, *options: str) -> Certificate:
        made = Certificate(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._run("req", *curve, *options, "-keyout", made.key, "-out", made.certificate)
        return made

    def _run(self, *command: object) -> None:
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)

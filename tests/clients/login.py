"""How a client logs in to a secured server: variables for the programs, properties for Java."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOGIN_MODULE: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_OF_FILE: Final = (
    "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
    "OAuthBearerLoginCallbackHandler"
)


@dataclass(frozen=True)
class Login:
    """By TLS, and then by a password, a token, or the client's certificate alone.

    Attributes:
        ca: the authority's certificate (PEM).
        mechanism: of SASL; empty: the certificate alone.
        token_file: a file with a token.
        certificate, key: the client's own (PEM).
    """

    ca: Path
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def protocol(self) -> str:
        """As Kafka names it."""
        return "SASL_SSL" if self.mechanism else "SSL"

    def env(self) -> dict[str, str]:
        """The variables that the programs read."""
        named = {
            "LOGIN_CA": self.ca, "LOGIN_MECHANISM": self.mechanism, "LOGIN_USER": self.user,
            "LOGIN_PASSWORD": self.password, "LOGIN_TOKEN_FILE": self.token_file or "",
            "LOGIN_CERTIFICATE": self.certificate or "", "LOGIN_KEY": self.key or "",
        }  # fmt: skip
        return {name: str(value) for name, value in named.items()}

    def properties(self, folder: Path) -> str:
        """The properties of Kafka's Java client; `folder` is for its own files."""
        lines = [
            f"security.protocol={self.protocol}", "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.ca}",
        ]  # fmt: skip
        if self.certificate is not None and self.key is not None:
            store = folder / "keystore.pem"
            store.write_text(self.key.read_text() + self.certificate.read_text())
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={store}"]
        if self.mechanism:
            jaas = f"{_LOGIN_MODULE[self.mechanism]} required"
            if self.token_file is None:
                jaas += f' username="{self.user}" password="{self.password}"'
            else:
                url = f"file://{self.token_file}"
                lines += [_TOKEN_OF_FILE, f"sasl.oauthbearer.token.endpoint.url={url}"]
            lines += [f"sasl.mechanism={self.mechanism}", f"sasl.jaas.config={jaas};"]
        return "".join(f"{line}\n" for line in lines)

    def java_options(self) -> list[str]:
        """The options of the virtual machine: from where Java may take a token."""
        if self.token_file is None:
            return []
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{self.token_file}"]

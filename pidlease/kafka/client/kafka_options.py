"""TLS and SASL by the names of Kafka's Java client, as Spark's Kafka source and Kafka's tools have.

Each name is mapped, or refused with what to use instead. Python reads certificates and keys as PEM
only, so Java's key stores are refused.
"""

import asyncio
import re
import ssl
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from pidlease.kafka.client.connection_security import MECHANISMS, PROTOCOLS
from pidlease.kafka.client.settings import OAUTHBEARER, no_password
from pidlease.kafka.errors import OptionError

Loaded = TypeVar("Loaded")
#: Connection settings by Kafka's names, without `kafka.`.
Security = tuple[tuple[str, str], ...]


class TokenFile:
    """Reads a token from a file at each login: others replace it in time."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    async def token(self) -> str:
        """Return the file's text."""
        return (await asyncio.to_thread(self._path.read_text)).strip()


PREFIX: Final = "kafka."
_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_USER: Final = "sasl.username"
_PASSWORD: Final = "sasl.password"  # noqa: S105 - a name
_HANDLER: Final = "sasl.login.callback.handler.class"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name
_CA: Final = "ssl.ca.location"
_TRUSTED: Final = "ssl.truststore.location"
_TRUSTED_TYPE: Final = "ssl.truststore.type"
_TRUSTED_PEM: Final = "ssl.truststore.certificates"
_OWN: Final = "ssl.keystore.location"
_OWN_TYPE: Final = "ssl.keystore.type"
_OWN_CHAIN: Final = "ssl.keystore.certificate.chain"
_OWN_KEY: Final = "ssl.keystore.key"
_KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105 - a name
_HOSTS: Final = "ssl.endpoint.identification.algorithm"
#: The settings that are mapped.
NAMES: Final = (
    _PROTOCOL, _MECHANISM, _JAAS, _USER, _PASSWORD, _HANDLER, _TOKEN_URL, _CA,
    _TRUSTED, _TRUSTED_TYPE, _TRUSTED_PEM, _OWN, _OWN_TYPE, _OWN_CHAIN, _OWN_KEY,
    _KEY_PASSWORD, _HOSTS,
)  # fmt: skip

#: The mechanisms by the login module that Kafka's Java client needs for them.
_MODULES: Final = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_LOGIN: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+\w+\s+(?P<options>.*?);?\s*", re.DOTALL)
#: The login module and the handler of tokens, as Kafka's Java client needs them.
_TOKEN_LOGIN: Final = re.compile(r"\s*([\w$]+\.)*OAuthBearerLoginModule\s+\w+\s*;?\s*")
_TOKEN_HANDLER: Final = "OAuthBearerLoginCallbackHandler"  # noqa: S105 - a class
_LOGIN_OPTION: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\";]+))")
_STORE_ENDS: Final = (".jks", ".p12", ".pfx", ".keystore", ".truststore")
_PEM: Final = "PEM"
_EXPORT_TRUSTED: Final = (
    "export its certificates (keytool -exportcert -rfc -keystore STORE -alias ALIAS > ca.pem) and"
    f" give {PREFIX}{_TRUSTED_TYPE}=PEM and {PREFIX}{_TRUSTED}=ca.pem"
)
_EXPORT_OWN: Final = (
    "convert it (keytool -importkeystore -srckeystore STORE -destkeystore client.p12"
    " -deststoretype PKCS12; openssl pkcs12 -in client.p12 -nodes -out client.pem) and give"
    f" {PREFIX}{_OWN_TYPE}=PEM and {PREFIX}{_OWN}=client.pem"
)
_NO_STORE_PASSWORD: Final = (
    f"is the password of a Java key store, and PEM files have none; the password of a key is"
    f" {PREFIX}{_KEY_PASSWORD}"
)
_NO_KERBEROS: Final = "belongs to Kerberos, which is not supported: use SCRAM-SHA-512"
_NO_TOKENS: Final = (
    f"is not supported: with OAUTHBEARER, {PREFIX}{_TOKEN_URL} is the URL of a file with a token,"
    " file:///PATH"
)
_DEFAULT_TLS: Final = "is not needed: the TLS versions and ciphers are those of Python's ssl module"
#: Settings of Kafka's Java client that are refused, and what to do instead.
_REFUSED: Final = {
    "ssl.truststore.password": _NO_STORE_PASSWORD,
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "sasl.kerberos.": _NO_KERBEROS,
    "sasl.oauthbearer.": _NO_TOKENS,
    "sasl.login.": _NO_TOKENS,
    "sasl.client.callback.": _NO_TOKENS,
    "ssl.enabled.protocols": _DEFAULT_TLS,
    "ssl.protocol": _DEFAULT_TLS,
    "ssl.cipher.suites": _DEFAULT_TLS,
    "ssl.provider": _DEFAULT_TLS,
    "ssl.secure.random.implementation": _DEFAULT_TLS,
    "ssl.keymanager.algorithm": _DEFAULT_TLS,
    "ssl.trustmanager.algorithm": _DEFAULT_TLS,
    "ssl.engine.factory.class": _DEFAULT_TLS,
    "ssl.certificate.location": f"is librdkafka's name: give {PREFIX}{_OWN}",
    "ssl.key.location": f"is librdkafka's name: put the key into the file of {PREFIX}{_OWN}",
    "sasl.mechanisms": f"is librdkafka's name: give {PREFIX}{_MECHANISM}",
}


def refuse_unmapped(names: Iterable[str]) -> None:
    """Refuse options of Kafka's Java client that are known and cannot be mapped.

    Parameters:
        names: of options, with `kafka.`.

    Raises:
        OptionError: there is one; the text says what to use instead.
    """
    for name in names:
        lower = name.lower()
        if lower in (PREFIX + _HANDLER, PREFIX + _TOKEN_URL):
            continue
        for refused, reason in _REFUSED.items():
            whole = PREFIX + refused
            if lower == whole or (refused.endswith(".") and lower.startswith(whole)):
                raise OptionError(f"option {name} {reason}")


def read_security(options: Mapping[str, str]) -> Security:
    """Return the connection settings among options, validated; no file is opened.

    Parameters:
        options: with lower-case names.

    Raises:
        OptionError: one is invalid, contradicts another one, or cannot be mapped.
    """
    given = {name: options[PREFIX + name] for name in NAMES if PREFIX + name in options}
    protocol = given.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise OptionError(
            f"{PREFIX}{_PROTOCOL} {given[_PROTOCOL]!r} is none of {', '.join(PROTOCOLS)}"
        )
    if _PROTOCOL in given:
        given[_PROTOCOL] = protocol
    for prefix, needed in (("ssl.", "SSL or SASL_SSL"), ("sasl.", "SASL_SSL or SASL_PLAINTEXT")):
        part = prefix[:-1].upper()
        own = [name for name in given if name.startswith(prefix)]
        if own and part not in protocol.split("_"):
            raise OptionError(
                f"{PREFIX}{own[0]} goes with {PREFIX}{_PROTOCOL} {needed}, not {protocol}"
            )
    _check_stores(given)
    if protocol.startswith("SASL"):
        _check_login(given)
    return tuple(sorted(given.items()))


def connection_options(security: Security) -> dict[str, Any]:
    """Return the options of a `ConnectionSecurity`, with a TLS context where TLS is used.

    Raises:
        ValueError: a file cannot be used; the text names it.
    """
    given = dict(security)
    protocol = given.get(_PROTOCOL, "PLAINTEXT")
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL") and given[_MECHANISM] == OAUTHBEARER:
        path = _token_path(given)
        if not path.is_file():
            raise ValueError(f"{path} is not there, on this machine")
        provider = TokenFile(path)
        found |= {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": provider}
    elif protocol.startswith("SASL"):
        mechanism, user, password = _login(given)
        found |= {
            "sasl_mechanism": mechanism, "sasl_plain_username": user,
            "sasl_plain_password": password,
        }  # fmt: skip
    if protocol.endswith("SSL"):
        found["ssl_context"] = _tls_context(given)
    return found


# ---------------------------------------------------------------------- TLS


def _check_stores(given: Mapping[str, str]) -> None:
    for kind, location, inline, export in (
        (_TRUSTED_TYPE, _TRUSTED, (_TRUSTED_PEM,), _EXPORT_TRUSTED),
        (_OWN_TYPE, _OWN, (_OWN_CHAIN, _OWN_KEY), _EXPORT_OWN),
    ):
        store, path = given.get(kind, "").upper(), given.get(location, "")
        if (store and store != _PEM) or (not store and path.lower().endswith(_STORE_ENDS)):
            what = f"{PREFIX}{kind} {store}" if store else f"{PREFIX}{location} {path}"
            raise OptionError(f"{what} is a Java key store, which Python cannot read: {export}")
        if path and any(name in given for name in inline):
            raise OptionError(f"give either {PREFIX}{location} or {PREFIX}{inline[0]}")
    if (_OWN_CHAIN in given) != (_OWN_KEY in given):
        raise OptionError(f"{PREFIX}{_OWN_CHAIN} and {PREFIX}{_OWN_KEY} go together")
    if _CA in given and (_TRUSTED in given or _TRUSTED_PEM in given):
        raise OptionError(f"give either {PREFIX}{_CA} or {PREFIX}{_TRUSTED}")
    if given.get(_HOSTS, "https").lower() not in ("", "https"):
        raise OptionError(f"{PREFIX}{_HOSTS} is https, or empty to trust any host name")


def _tls_context(given: Mapping[str, str]) -> ssl.SSLContext:
    trusted = given.get(_TRUSTED) or given.get(_CA)
    context = _loaded(
        trusted,
        _EXPORT_TRUSTED,
        lambda: ssl.create_default_context(cafile=trusted, cadata=given.get(_TRUSTED_PEM)),
    )
    password = given.get(_KEY_PASSWORD) or no_password
    if own := given.get(_OWN):
        _loaded(own, _EXPORT_OWN, lambda: context.load_cert_chain(own, password=password))
    elif _OWN_KEY in given:
        # ssl loads keys from files only; this one can be read by its owner, for a moment.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{given[_OWN_KEY].strip()}\n{given[_OWN_CHAIN].strip()}\n")
            file.flush()
            _loaded(
                f"{PREFIX}{_OWN_KEY}",
                _EXPORT_OWN,
                lambda: context.load_cert_chain(file.name, password=password),
            )
    if given.get(_HOSTS, "https") == "":
        context.check_hostname = False
    return context


def _loaded(name: str | None, export: str, load: Callable[[], Loaded]) -> Loaded:
    """Load certificates or a key.

    Raises:
        ValueError: they cannot be used; the text names them.
    """
    try:
        return load()
    except FileNotFoundError:
        raise ValueError(f"{name} is not there, on this machine") from None
    except (ssl.SSLError, OSError) as error:
        hint = ""
        if name and Path(name).is_file() and b"-----BEGIN" not in Path(name).read_bytes():
            hint = f"; it is no PEM file. If it is a Java key store, {export}"
        raise ValueError(f"{name} cannot be used: {error}{hint}") from None


# ---------------------------------------------------------------------- SASL


def _check_login(given: Mapping[str, str]) -> None:
    mechanism = given.get(_MECHANISM, "")
    if mechanism not in MECHANISMS:
        what = f"{mechanism!r} is none of" if mechanism else "is missing; it is one of"
        raise OptionError(f"{PREFIX}{_MECHANISM} {what} {', '.join(MECHANISMS)}")
    if mechanism != OAUTHBEARER:
        if _HANDLER in given:
            raise OptionError(f"{PREFIX}{_HANDLER} {_NO_TOKENS}")
        _login(given)
        return
    if not _TOKEN_LOGIN.fullmatch(given.get(_JAAS, "OAuthBearerLoginModule required")):
        raise OptionError(
            f"{PREFIX}{_JAAS} for {OAUTHBEARER} is: org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginModule required;"
        )
    if not given.get(_HANDLER, f".{_TOKEN_HANDLER}").endswith(f".{_TOKEN_HANDLER}"):
        raise OptionError(f"{PREFIX}{_HANDLER} {_NO_TOKENS}")
    if others := {_USER, _PASSWORD} & given.keys():
        raise OptionError(f"{PREFIX}{min(others)} does not go with {OAUTHBEARER}")
    _token_path(given)


def _token_path(given: Mapping[str, str]) -> Path:
    """Return the file of the token (KIP-768: the URL may be one of a file).

    Raises:
        OptionError: the URL is another one, or missing.
    """
    parts = urlsplit(given.get(_TOKEN_URL, ""))
    if parts.scheme != "file" or parts.netloc or not parts.path:
        raise OptionError(f"{PREFIX}{_TOKEN_URL} is the URL of a file with a token, file:///PATH")
    return Path(unquote(parts.path))


def _login(given: Mapping[str, str]) -> tuple[str, str, str]:
    """Return mechanism, user and password.

    Raises:
        OptionError: they are missing, or the login module is another one.
    """
    mechanism, jaas = given[_MECHANISM], given.get(_JAAS)
    if jaas is None:
        if _USER not in given or _PASSWORD not in given:
            raise OptionError(f"{PREFIX}{_JAAS} is missing, or {PREFIX}{_USER} and {_PASSWORD}")
        return mechanism, given[_USER], given[_PASSWORD]
    if _USER in given or _PASSWORD in given:
        raise OptionError(f"give either {PREFIX}{_JAAS} or {PREFIX}{_USER}")
    found = _LOGIN.fullmatch(jaas)
    module = found["module"].rpartition(".")[2] if found else ""
    # The value may have a password: no text shows it.
    if found is None or mechanism not in _MODULES.get(module, ()):
        wanted = next(name for name, known in _MODULES.items() if mechanism in known)
        raise OptionError(
            f"{PREFIX}{_JAAS} for {mechanism} is: org.apache.kafka.common.security."
            f"{wanted.removesuffix('LoginModule').lower()}.{wanted} required"
            ' username="..." password="...";'
        )
    options = {
        name: bare or re.sub(r"\\(.)", r"\1", quoted)
        for name, quoted, bare in _LOGIN_OPTION.findall(found["options"])
    }
    if not {"username", "password"} <= options.keys():
        raise OptionError(f"{PREFIX}{_JAAS} has no username, or no password")
    return mechanism, options["username"], options["password"]

"""Principals of client certificates: `ssl.principal.mapping.rules` (KIP-371).

Source: SslPrincipalMapper of Kafka's Java client. A rule is `DEFAULT`, or
`RULE:PATTERN/REPLACEMENT/` with an optional `L` or `U` after it. The first rule with a
pattern that matches the whole distinguished name decides; the name is in RFC 2253's form.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

#: A rule: pattern and replacement may have escaped slashes.
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_REFERENCE: Final = re.compile(r"\$(\d)")
_DEFAULT: Final = "DEFAULT"
#: The short names of RFC 2253, by openssl's long ones.
_SHORT: Final = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "streetAddress": "STREET", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_SPECIAL: Final = re.compile(r'([,+"\\<>;=])')
_NAME_LENGTH_MAX: Final = 1024


class MappingRuleError(ValueError):
    """A rule is invalid; the message shows it."""


class _Rule(NamedTuple):
    """A rule; without a pattern, it leaves the name as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


class PrincipalMapper:
    """Maps a certificate's distinguished name to a user.

    Parameters:
        rules: as in Kafka's configuration, separated by commas.

    Raises:
        MappingRuleError: a rule is invalid.
    """

    def __init__(self, rules: str) -> None:
        self._rules: Final = tuple(_parse(rules))

    def user(self, name: str) -> str | None:
        """Return the user of a distinguished name; None: no rule matches it.

        Parameters:
            name: in RFC 2253's form.
        """
        if len(name) > _NAME_LENGTH_MAX:
            return None
        for rule in self._rules:
            user = _applied(rule, name)
            if user is not None:
                return user or None
        return None


def _applied(rule: _Rule, name: str) -> str | None:
    """Return what a rule makes of a name; None: its pattern does not match."""
    if rule.pattern is None:
        return name
    found = rule.pattern.fullmatch(name)
    if found is None:
        return None
    user = _REFERENCE.sub(lambda each: found[int(each[1])] or "", rule.replacement)
    return {"L": user.lower(), "U": user.upper()}.get(rule.case, user)


def _parse(rules: str) -> Sequence[_Rule]:
    parsed, at = [], 0
    text = rules.strip()
    while at < len(text):
        if text.startswith(_DEFAULT, at):
            parsed.append(_Rule(None))
            at += len(_DEFAULT)
        elif found := _RULE.match(text, at):
            try:
                pattern = re.compile(found[1])
            except re.error as error:
                raise MappingRuleError(f"{found[0]}: {error}") from None
            if any(int(each) > pattern.groups for each in _REFERENCE.findall(found[2])):
                raise MappingRuleError(f"{found[0]}: the pattern has no such group")
            parsed.append(_Rule(pattern, found[2].replace("\\/", "/"), found[3]))
            at = found.end()
        else:
            raise MappingRuleError(f"{text[at:]!r} is no rule: RULE:PATTERN/REPLACEMENT/, DEFAULT")
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            raise MappingRuleError(f"{rest!r} follows a rule; rules are separated by commas")
        at = len(text) - len(rest[1:].lstrip()) if rest else len(text)
    if not parsed:
        raise MappingRuleError("there is no rule; give DEFAULT for the whole name")
    return parsed


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate in RFC 2253's form: the last part first, escaped.

    Parameters:
        certificate: as `ssl.SSLSocket.getpeercert` returns it.
    """
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in several)
        for several in reversed(certificate.get("subject", ()))
    )


def _escaped(value: str) -> str:
    escaped = _SPECIAL.sub(r"\\\1", value).replace("\0", "\\00")
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if len(value) > 1 and escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return escaped

"""Looks for published vulnerabilities of the locked requirements, by pip-audit.

Not every machine reaches the advisory service. Where it does not answer, nothing is known, and this
says so.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_SECONDS: Final = 300
#: The longest wait for one answer of the service.
_ANSWER_SECONDS: Final = 15


class AdvisoryError(Exception):
    """Packages have published vulnerabilities; the message names them."""


class Audited(NamedTuple):
    """What is known of the locked packages.

    Attributes:
        known: how many of them the service knows.
        unknown: how many it did not answer about; all of them where it cannot be reached.
    """

    known: int
    unknown: int


def audit(program: Path, requirements: Path) -> Audited:
    """Look for vulnerabilities of all packages in a file.

    Parameters:
        program: pip-audit.
        requirements: the file, with hashes.

    Raises:
        AdvisoryError: there are some.
    """
    done = subprocess.run(  # noqa: S603 - the Makefile's own program
        [
            str(program), "--requirement", str(requirements), "--require-hashes", "--disable-pip",
            "--format", "json", "--progress-spinner", "off", "--timeout", str(_ANSWER_SECONDS),
        ],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    packages = sum(line[0] not in " #\n" for line in requirements.read_text().splitlines() if line)
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audited(0, packages)  # it has ended with an error of the connection
    vulnerable = [
        f"{each['name']} {each['version']}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in found
        if each.get("vulns")
    ]
    if vulnerable:
        raise AdvisoryError("; ".join(vulnerable))
    known = sum("vulns" in each for each in found)
    return Audited(known, packages - known)

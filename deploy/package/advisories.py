"""Looks for published vulnerabilities of the locked requirements, by pip-audit.

Not every machine reaches the advisory service. Where it does not answer, nothing is known, and this
says so.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.package.locked_requirements import locked_packages

_SECONDS: Final = 300
#: The longest wait for one answer of the service.
_ANSWER_SECONDS: Final = 15
#: The exit code of a program that was called wrongly.
_USAGE: Final = 2


class AdvisoryError(Exception):
    """Packages have published vulnerabilities, or it is unknown; the message says why."""


class Audited(NamedTuple):
    """What is known of the locked packages.

    Attributes:
        known: how many of them the service knows.
        unknown: how many it did not answer about; all of them where it cannot be reached.
        reason: the last line of pip-audit's errors, if it has written no result.
    """

    known: int
    unknown: int
    reason: str = ""


def audit(program: Path, requirements: Path) -> Audited:
    """Look for vulnerabilities of all packages in a file.

    Parameters:
        program: pip-audit.
        requirements: the file, with hashes.

    Raises:
        AdvisoryError: there are some, or pip-audit does not understand how it was called.
    """
    done = subprocess.run(  # noqa: S603 - the Makefile's own program
        [
            str(program), "--requirement", str(requirements), "--require-hashes", "--disable-pip",
            "--format", "json", "--progress-spinner", "off", "--timeout", str(_ANSWER_SECONDS),
        ],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    reason = "".join(done.stderr.splitlines()[-1:])
    if done.returncode == _USAGE:
        raise AdvisoryError(f"{program}: {reason}")
    packages = len(locked_packages(requirements.read_text()))
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audited(0, packages, reason)  # it has ended with an error of the connection
    vulnerable = [
        f"{each['name']} {each['version']}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in found
        if each.get("vulns")
    ]
    if vulnerable:
        raise AdvisoryError("; ".join(vulnerable))
    known = sum("vulns" in each for each in found)
    return Audited(known, packages - known)

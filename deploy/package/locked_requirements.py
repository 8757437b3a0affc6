"""The locked requirements of the images: the parts of requirements/dev.txt that they need.

pip-compile writes below each package which packages need it (`# via`). The closure of the project's
own requirements is read from these lines, so all files have the same versions.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
#: The command that writes the files.
COMMAND: Final = "python -m deploy.package requirements"
_FOLDER: Final = ROOT / "requirements"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCKED: Final = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)")
_VIA: Final = re.compile(r"^ +# +(?:via +)?(?!via$)(\S+)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockedPackage(NamedTuple):
    """A package of a locked version.

    Attributes:
        hashes: SHA-256 of its files, in hexadecimal.
        needed_by: the packages that need it.
        text: its lines in the file.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]
    text: str


class RequirementsError(Exception):
    """The locked requirements do not have what the project needs; the message says what to do."""


def canonical(name: str) -> str:
    """Return a package's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_packages(text: str) -> dict[str, LockedPackage]:
    """Return the packages of a file that pip-compile wrote, by name."""
    found = {}
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE):
        line = _LOCKED.match(block)
        if line is None:
            continue
        name = canonical(line[1])
        needed_by = frozenset(canonical(each) for each in _VIA.findall(block))
        found[name] = LockedPackage(
            name, line[2], tuple(_HASH.findall(block)), needed_by, block.rstrip("\n")
        )
    return found


def project_requirements(extra: str) -> set[str]:
    """Return the names of the packages that the project itself needs with one of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    names = (_NAME.match(each) for each in lines)
    return {canonical(each[0]) for each in names if each is not None}


def closure(packages: Mapping[str, LockedPackage], roots: Iterable[str]) -> list[LockedPackage]:
    """Return these packages and all that they need, by name.

    Raises:
        RequirementsError: one of `roots` is not locked.
    """
    wanted = set(roots)
    if missing := sorted(wanted - packages.keys()):
        raise RequirementsError(
            f"requirements/dev.txt has no {', '.join(missing)}: add them there by `make lock`"
        )
    while True:
        more = {
            each.name
            for each in packages.values()
            if each.name not in wanted and each.needed_by & wanted
        }
        if not more:
            return [packages[name] for name in sorted(wanted)]
        wanted |= more


def server_packages() -> list[LockedPackage]:
    """Return the packages of a server: the client's and those of the extra `server`."""
    return closure(_dev(), project_requirements("server"))


def requirements_files() -> dict[Path, str]:
    """Return the contents of the files that are made from requirements/dev.txt."""
    builders = closure(_dev(), ["hatchling"])
    spark = closure(_dev(), project_requirements("server") | project_requirements("spark"))
    return {
        _FOLDER / "server.txt": _text("a server", server_packages()),
        _FOLDER / "spark.txt": _text("a Spark job", spark),
        _FOLDER / "build.txt": _text("a build of the wheel", builders),
    }


def _dev() -> dict[str, LockedPackage]:
    return locked_packages((_FOLDER / "dev.txt").read_text(encoding="utf-8"))


def _text(purpose: str, packages: Iterable[LockedPackage]) -> str:
    head = f"# What {purpose} needs, from dev.txt. `{COMMAND}` writes this file.\n"
    return head + "".join(f"{each.text}\n" for each in packages)

"""`make dist`: the same bytes each time, and what the image's requirements and the bill say."""

import hashlib
import json
import re
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.specifiers import SpecifierSet

from deploy.package.bill_of_materials import bill_of_materials
from deploy.package.distribution import CHECKSUMS, build
from deploy.package.locked_requirements import (
    COMMAND,
    RequirementsError,
    closure,
    locked_packages,
    project_requirements,
    requirements_files,
    server_packages,
)
from pidlease import __version__

_ROOT: Final = Path(__file__).resolve().parents[2]
#: The time of a commit.
_EPOCH_S: Final = 1_700_000_000

needs_git = pytest.mark.skipif(
    not (_ROOT / ".git").exists(), reason="the package is built from a commit: this is no checkout"
)

_LOCK: Final = """\
a-b==1.0 \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
    # via pidlease (pyproject.toml)
c==2.0 \\
    --hash=sha256:{0}
    # via
    #   A_B
    #   other
d==3.0 \\
    --hash=sha256:{0}
    # via c
e==4.0 \\
    --hash=sha256:{0}
    # via other
""".format("0" * 64, "1" * 64)


def test_the_closure_of_a_lock_file() -> None:
    packages = locked_packages(_LOCK)
    assert packages["c"].needed_by == {"a-b", "other"}
    assert packages["a-b"].hashes == ("0" * 64, "1" * 64)
    assert [each.name for each in closure(packages, ["a-b"])] == ["a-b", "c", "d"]


def test_a_package_that_is_not_locked() -> None:
    with pytest.raises(RequirementsError, match=r"dev\.txt has no new.*make lock"):
        closure(locked_packages(_LOCK), ["a-b", "new"])


def test_the_requirements_of_the_image_are_as_they_are_made() -> None:
    for path, text in requirements_files().items():
        assert path.read_text() == text, f"run: {COMMAND}"


def test_all_that_a_server_needs_is_locked() -> None:
    names = {each.name for each in server_packages()}
    assert project_requirements("server") <= names
    assert not names & {"pytest", "mypy", "pyspark", "hatchling"}
    assert all(each.hashes for each in server_packages())


def test_the_oldest_python_can_install_all_that_is_locked() -> None:
    """Debian 12 has Python 3.11.2: a package that needs 3.11.5 ends `make test` there."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    needs = {
        f"{each.name} {each.version}": str(each.metadata.json.get("requires_python", ""))
        for each in distributions()
    }
    assert len(needs) > 100
    refused = {each: need for each, need in needs.items() if oldest not in SpecifierSet(need)}
    assert not refused, f"Python {oldest} cannot install them"


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    headings = re.findall(r"^## (\S+)", (_ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] in ("Unreleased", __version__)


def test_the_bill_of_materials() -> None:
    packages = server_packages()
    text = bill_of_materials(packages, _EPOCH_S)
    assert text == bill_of_materials(packages, _EPOCH_S)
    bill: dict[str, Any] = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert bill["metadata"]["component"]["version"] == __version__
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    assert listed == {(each.name, each.version) for each in packages}
    refs = {each["bom-ref"] for each in (*bill["components"], bill["metadata"]["component"])}
    assert {each["ref"] for each in bill["dependencies"]} == refs
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} <= refs


@needs_git
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    first, second = build(tmp_path / "first"), build(tmp_path / "second")
    assert [each.suffix for each in first] == [".whl", ".gz", ".json", ""]
    for one, other in zip(first, second, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes(), one.name
    for line in (tmp_path / "first" / CHECKSUMS).read_text().splitlines():
        checksum, name = line.split()
        content = (tmp_path / "first" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum
    _check_contents(first)


def _check_contents(built: list[Path]) -> None:
    (wheel,) = (each for each in built if each.suffix == ".whl")
    (sdist,) = (each for each in built if each.suffix == ".gz")
    command = ["git", "ls-tree", "-r", "--name-only", "HEAD"]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    committed = set(listed.stdout.split("\n"))
    with tarfile.open(sdist) as archive:
        prefix = sdist.name.removesuffix(".tar.gz") + "/"
        names = {each.name.removeprefix(prefix) for each in archive if each.isfile()}
    assert names - committed == {"PKG-INFO"}
    assert {"LICENSE", "CHANGELOG.md", "requirements/server.txt", "tests/conftest.py"} <= names
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        modules = [each for each in archive_of_wheel.namelist() if ".data/" not in each]
    tops = {each.partition("/")[0] for each in modules}
    assert tops == {"pidlease", "proxy", f"pidlease-{__version__}.dist-info"}

"""Builds sdist, wheel and bill of materials from a commit: two builds have the same bytes."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from deploy.package.archives import unpack
from deploy.package.bill_of_materials import bill_of_materials
from deploy.package.locked_requirements import ROOT, server_packages

#: Checksums of the other files, as `sha256sum --check` reads them.
CHECKSUMS: Final = "SHA256SUMS"


class DistributionError(Exception):
    """The package cannot be built; the message says why and what to do."""


def check_committed() -> None:
    """Check that the checkout is the commit.

    Raises:
        DistributionError: files differ from it; they would not be in the package.
    """
    if changed := _git("status", "--porcelain").decode().splitlines():
        raise DistributionError(f"commit or remove these first: {', '.join(changed)}")


def build(folder: Path, commit: str = "HEAD") -> list[Path]:
    """Build the package of a commit into a folder; return its files.

    Only files of the commit get into it. All times in it are the commit's (SOURCE_DATE_EPOCH).

    Raises:
        DistributionError: the build failed.
    """
    epoch_s = int(_git("log", "-1", "--format=%ct", commit))
    folder.mkdir(parents=True, exist_ok=True)
    # Not below the checkout: its .gitignore would leave the files out.
    with tempfile.TemporaryDirectory(prefix="pidlease-dist-") as source:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
            unpack(archive, Path(source))
        _hatchling(Path(source), folder.resolve(), epoch_s)
    bill = folder / "pidlease.cdx.json"
    bill.write_text(bill_of_materials(server_packages(), epoch_s), encoding="utf-8")
    built = sorted({*folder.glob("pidlease-*.whl"), *folder.glob("pidlease-*.tar.gz"), bill})
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in built]
    (folder / CHECKSUMS).write_text("".join(sums), encoding="utf-8")
    return [*built, folder / CHECKSUMS]


def _hatchling(source: Path, folder: Path, epoch_s: int) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
    done = subprocess.run(  # noqa: S603 - no input of others
        [*command, "-d", str(folder)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DistributionError(f"hatchling failed:\n{done.stdout}{done.stderr}")


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)  # noqa: S603, S607
    except FileNotFoundError:
        raise DistributionError(
            "there is no git: install it (Debian: apt-get install git)"
        ) from None
    except subprocess.CalledProcessError as error:
        raise DistributionError(f"git {arguments[0]}: {error.stderr.decode().strip()}") from error
    return done.stdout

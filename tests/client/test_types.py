"""The types of the client's public names are complete, as pyright sees them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_SCRIPTS = Path(sys.executable).parent
#: Nothing is downloaded: Node and pyright come from packages, and a download would fail.
_OFFLINE = {
    "PYRIGHT_PYTHON_GLOBAL_NODE": "0",
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    "http_proxy": "http://127.0.0.1:1",
    "https_proxy": "http://127.0.0.1:1",
}


def verify(module: str, folder: Path) -> dict[str, Any]:
    """Pyright's report about a module of this environment, or of the folder's site."""
    # It searches where the `python` of the PATH does.
    path = os.pathsep.join((str(_SCRIPTS), os.environ["PATH"]))
    done = subprocess.run(
        [_SCRIPTS / "pyright", "--verifytypes", module, "--ignoreexternal", "--outputjson"],
        cwd=folder, env=os.environ | _OFFLINE | {"PATH": path, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    assert (done.returncode == 0) is (report["completenessScore"] == 1), done.stderr
    return report


def test_the_client_is_typed_completely(tmp_path: Path) -> None:
    report = verify("pidlease.client", tmp_path)
    incomplete = [each["name"] for each in report["symbols"] if not each["isTypeKnown"]]
    assert (report["completenessScore"], incomplete) == (1, [])
    public = {each["name"] for each in report["symbols"] if each["isExported"]}
    assert {"pidlease.client.producer.LeasedProducer.send_many"} <= public


def test_a_missing_type_is_found(tmp_path: Path) -> None:
    package = tmp_path / "half_typed"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text("def known() -> int: ...\ndef unknown(x): ...\n")
    report = verify("half_typed", tmp_path)
    assert report["completenessScore"] < 1

"""`make demo` installs requirements/demo.txt and nothing else: that must do for what it imports."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_IMPORT = """
import importlib, sys
modules, *missing = sys.argv[1:]
sys.modules.update(dict.fromkeys(missing))  # importing one of them raises ModuleNotFoundError
for module in modules.split():
    importlib.import_module(module)
"""


def _locked(requirements: str) -> set[str]:
    text = (_ROOT / "requirements" / f"{requirements}.txt").read_text()
    return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))


def _not_installed_by(requirements: str) -> set[str]:
    """Top-level modules that only the tests' requirements bring."""
    missing = _locked("dev") - _locked(requirements)
    return {
        module
        for module, names in packages_distributions().items()
        if all(re.sub(r"[-_.]+", "-", name).lower() in missing for name in names)
    }


def _import(modules: str, requirements: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _IMPORT, modules, *_not_installed_by(requirements)]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("modules", "requirements"),
    [
        ("deploy.demo.__main__ deploy.demo.leased_producer", "demo"),
        ("deploy.demo.spark pidlease.spark.sink.run_state", "demo-spark"),
    ],
)
def test_the_demo_imports_nothing_of_the_tests_requirements(
    modules: str, requirements: str
) -> None:
    done = _import(modules, requirements)
    assert done.returncode == 0, done.stderr


def test_an_import_of_pytest_would_be_found() -> None:
    assert "pytest" in _not_installed_by("demo")
    assert "import of pytest halted" in _import("pytest", "demo").stderr

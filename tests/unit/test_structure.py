"""The structure of the code: one name per file, imports that point one way, no circles."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import grimp
import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("pidlease", "proxy")
#: Names that say what they are in any package.
_REPEATED = {"__init__", "__main__", "errors", "settings"}
#: A deprecated name keeps the name of what it stands for.
_DEPRECATED = _ROOT / "pidlease/client/copier.py"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*_PACKAGES)


def test_a_file_name_occurs_once() -> None:
    names = Counter(
        path.stem
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*.py")
        if path != _DEPRECATED
    )
    assert {name for name, count in names.items() if count > 1} <= _REPEATED


def test_no_circle_of_packages_or_files(graph: grimp.ImportGraph) -> None:
    packages = [module for module in graph.modules if graph.find_children(module)]
    assert len(packages) > len(_PACKAGES)
    circles = {each: graph.nominate_cycle_breakers(each) for each in packages}
    assert {each: found for each, found in circles.items() if found} == {}


def test_every_package_has_a_layer(graph: grimp.ImportGraph) -> None:
    """A package that no layer names could import, and be imported from, anywhere."""
    linter = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each for each in linter["contracts"] if each["type"] == "layers")["layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    children = {child for package in _PACKAGES for child in graph.find_children(package)}
    assert children == named


#: Where aiokafka's client is used: consumer groups, and a command that only consumes, need no own.
_CONSUMERS = {"pidlease/copier/group_membership.py", "proxy/cli/consume_command.py"}
#: Parts of aiokafka that are no client. `conn` has the SASL mechanisms, `abc` interfaces.
_PARTS = ("aiokafka.abc", "aiokafka.codec", "aiokafka.conn", "aiokafka.errors", "aiokafka.helpers",
          "aiokafka.record")  # fmt: skip


def test_there_is_one_kafka_client() -> None:
    found = {
        (path.relative_to(_ROOT).as_posix(), module)
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*.py")
        for module in re.findall(r"^(?:from|import) (aiokafka[\w.]*)", path.read_text(), re.M)
        if not module.startswith(_PARTS)
    }
    assert {file for file, _ in found} == _CONSUMERS

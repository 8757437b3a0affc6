"""Every code block of README, of the pages and of the docstrings runs as it is pasted."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.docs.page_run import PageRun, curl_missing
from tests.docs.snippets import Block, blocks_of_docstrings, blocks_of_page, indented_blocks
from tests.servers.kafka import KafkaServer
from tests.servers.kafka.install import unavailable_reason
from tests.servers.spark import jvm_settings, spark_environment, spark_missing
from tests.servers.waiting import WAIT_S

_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGES: Final = sorted({*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")})
#: Packages with examples in their docstrings; those of one line share a server, in this order.
_DOCSTRINGS: Final = (("client", "core"), ("copier",), ("testing",), ("spark",))


#: The topics in the reader's cluster.
_TOPICS: Final = ("orders", "payments")


def _name(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _with_blocks() -> list[Path]:
    return [path for path in _PAGES if "```" in path.read_text("utf-8")]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A real Kafka for all pages, started by the first one that names one."""
    started: list[KafkaServer] = []

    def address() -> str:
        if not started:
            if reason := unavailable_reason():
                pytest.skip(reason)
            server = KafkaServer(tmp_path_factory.mktemp("kafka"))
            server.start()
            started.append(server)
            _fill(server.bootstrap)
        return started[0].bootstrap

    yield address
    for each in started:
        each.stop()


def _fill(bootstrap: str) -> None:
    """Write some records into the topics that pages copy."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in _TOPICS:
        for number in range(3):
            producer.produce(topic, f"{topic} {number}".encode())
    assert producer.flush(WAIT_S) == 0


@pytest.mark.parametrize("page", _with_blocks(), ids=_name)
def test_page(page: Path, tmp_path: Path, kafka: Callable[[], str]) -> None:
    _run(blocks_of_page(page, _ROOT), tmp_path, kafka)


@pytest.mark.parametrize("packages", _DOCSTRINGS, ids="-".join)
def test_docstrings(packages: Sequence[str], tmp_path: Path, kafka: Callable[[], str]) -> None:
    blocks: list[Block] = []
    for package in packages:
        for path in sorted((_ROOT / "pidlease" / package).rglob("*.py")):
            blocks += blocks_of_docstrings(path, _ROOT)
    assert blocks
    _run(blocks, tmp_path, kafka)


def _run(blocks: Sequence[Block], folder: Path, kafka: Callable[[], str]) -> None:
    text = "".join(each.text for each in blocks if not each.reason)
    if curl_missing() and "curl" in text:
        pytest.skip("there is no curl")
    if shutil.which("openssl") is None and "openssl" in text:
        pytest.skip("there is no openssl")
    env: dict[str, str] = {}
    if "pidlease.spark" in text or "pyspark" in text:
        if reason := spark_missing():
            pytest.skip(reason)
        options = " ".join(f"--conf '{name}={value}'" for name, value in jvm_settings().items())
        env = {**spark_environment(), "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}
    with PageRun(blocks, folder, kafka, env) as run:
        run.run()


def test_no_other_docstring_has_a_block() -> None:
    """It would not run."""
    known = {package for packages in _DOCSTRINGS for package in packages}
    others = [
        path
        for top in ("pidlease", "proxy", "deploy")
        for path in sorted((_ROOT / top).rglob("*.py"))
        if top != "pidlease" or path.relative_to(_ROOT / top).parts[0] not in known
    ]
    assert [path for path in others if blocks_of_docstrings(path, _ROOT)] == []


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_each_block_has_a_language(page: Path) -> None:
    """Indented code has none, so nothing would run it."""
    assert list(indented_blocks(page.read_text("utf-8"))) == []


def test_the_readme_is_short() -> None:
    assert len((_ROOT / "README.md").read_text("utf-8").splitlines()) < 120

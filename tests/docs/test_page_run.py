"""A page that says what is not true fails."""

from pathlib import Path

import pytest

from tests.docs.page_run import PageRun
from tests.docs.snippets import blocks_of_page


def _run(folder: Path, page: str) -> None:
    (folder / "page.md").write_text(page)
    blocks = blocks_of_page(folder / "page.md", folder)
    (folder / "run").mkdir()
    with PageRun(blocks, folder / "run", lambda: "") as run:
        run.run()


def test_a_page_that_is_true(tmp_path: Path) -> None:
    _run(
        tmp_path,
        "```bash\nfruit=apple\n```\n\n```bash\necho $fruit pie\n```\n\n```text\napple ...\n```\n\n"
        "<!-- file: settings.toml -->\n```toml\nlease-seconds = 60\n```\n\n"
        "```python\nfrom pathlib import Path\n```\n\n"
        "```python\nprint(Path('settings.toml').read_text())\n```\n\n"
        "<!-- exit code: 3 -->\n```bash\nexit 3\n```\n\n<!-- not run: why -->\n```go\nx\n```\n",
    )


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```bash\ntrue\nfalse\ntrue\n```\n", "page.md:2: exit code 1"),
        ("```python\nraise ValueError\n```\n", "page.md:2: exit code 1"),
        ("```bash\necho a\n```\n\n```text\nb\n```\n", "page.md:2"),
        ("<!-- exit code: 3 -->\n```bash\ntrue\n```\n", "exit code 0"),
        ("```go\nx\n```\n", "nothing runs go"),
        ("```\nx\n```\n", "a block without a language"),
        ("```toml\nno-such-setting = 1\n```\n", "no_such_setting"),
        ("```json\n{,}\n```\n", "page.md:2"),
        ("<!-- file: a.txt -->\n```text\nx\n```\n", "no block uses the files"),
        ("```bash\nfalse | true\n```\n", "exit code 1"),
    ],
)
def test_a_page_that_is_not(tmp_path: Path, page: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        _run(tmp_path, page)


def test_a_block_that_does_not_end(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page.md:1: the block does not end"):
        _run(tmp_path, "```bash\nx\n")

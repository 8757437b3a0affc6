"""Markdown as GitHub shows it, rewritten for mkdocs; and the marks of code blocks."""

from pathlib import Path

import markdown

from deploy.site.github_markdown import indent_lists, rewrite_urls
from tests.docs.snippets import blocks_of_docstrings, blocks_of_page, indented_blocks

_LISTS = """Text:
- one
  - inner
- two

  ```bash
  ls
  ```

1. first
   continued
"""
_PAGE = """
<!-- not run: has a reason -->
```bash
a
```

```bash
b
```

```text
printed ...
```

1. In a list

   <!-- exit code: 2 -->
   ```sh
   c
     d
   ```

<!-- file: name.py -->
```python
e
```

Text between.

```text
shown
```
"""


def test_lists_become_lists() -> None:
    html = markdown.markdown(
        indent_lists(_LISTS), extensions=["sane_lists", "pymdownx.superfences"]
    )
    assert html.count("<ul>") == 2
    assert "<ol>" in html
    assert html.index("ls") < html.index("</ul>", html.index("two"))


def test_urls_of_other_files_are_replaced() -> None:
    def target(path: str, anchor: str) -> str | None:
        return None if path == "deploy" else f"<{path}>{anchor}"

    text = "[a](../x.md#y) [b](https://x.org) [c](#d) [`d`](../../deploy) ![i](p.svg)\n"
    assert rewrite_urls(text, "docs/produce/a.md", target) == (
        "[a](<docs/x.md>#y) [b](https://x.org) [c](#d) `d` ![i](p.svg)\n"
    )
    code = "```python\nd[0](../x.md)\n```\n"
    assert rewrite_urls(code, "docs/a.md", target) == code


def test_marks_of_blocks(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(_PAGE)
    found = blocks_of_page(tmp_path / "page.md", tmp_path)
    assert [(e.language, e.text, e.reason, e.output, e.exit_code, e.file) for e in found] == [
        ("bash", "a\n", "has a reason", None, 0, ""),
        ("bash", "b\n", "", "printed ...\n", 0, ""),
        ("sh", "c\n  d\n", "", None, 2, ""),
        ("python", "e\n", "", None, 0, "name.py"),
        ("text", "shown\n", "", None, 0, ""),
    ]
    assert [each.line for each in found[:2]] == [4, 8]


def test_blocks_of_docstrings(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        'def f():\n    """Do.\n\n    ```python\n    f()\n    ```\n    """\n'
    )
    (block,) = blocks_of_docstrings(tmp_path / "m.py", tmp_path)
    assert (block.text, block.where, block.scope) == ("f()\n", "m.py:5", "m.py:2")


def test_indented_code_is_found() -> None:
    assert list(indented_blocks("a\n\n    code\n\n- list\n\n    of the list\n\nb\n")) == [3]

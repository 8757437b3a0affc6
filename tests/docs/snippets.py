"""Finds the code blocks of Markdown and of docstrings, and the marks that say what becomes of them.

A block runs as pasted, in the order of its page, unless a comment above it says otherwise:

    <!-- not run: REASON -->    it does not run here
    <!-- file: NAME -->         it is put into a file, which a later block uses
    <!-- exit code: N -->       it ends with this exit code

A block of plain text or JSON right after a block is its output; `...` stands for anything.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

#: Languages of blocks that run, by what runs them.
SHELL: Final = frozenset({"bash", "sh"})
PYTHON: Final = "python"
#: Languages of files that are read by a parser.
PARSED: Final = frozenset({"toml", "json", "yaml", "ini"})
#: Nothing to run: what is shown, and pictures.
SHOWN: Final = frozenset({"text", "log", "mermaid"})
_OUTPUT: Final = frozenset({"text", "json"})

_FENCE: Final = re.compile(r"( *)(`{3,}|~{3,})(.*)")
_MARK: Final = re.compile(r"\s*<!-- (not run|not run here|file|exit code): (.+?) -->\s*")


class Block(NamedTuple):
    """A code block.

    Attributes:
        place: the file, relative to the repository.
        line: of its first line.
        reason: why it does not run; empty: it runs.
        file: where to put it.
        output: what it prints, if the page says so.
        scope: what shares its names: the page, or one docstring.
    """

    place: str
    line: int
    language: str
    text: str
    reason: str = ""
    file: str = ""
    exit_code: int = 0
    output: str | None = None
    scope: str = ""

    @property
    def where(self) -> str:
        """Where it is, as an editor opens it."""
        return f"{self.place}:{self.line}"


def blocks_of_page(path: Path, root: Path) -> list[Block]:
    """Return the blocks of a Markdown file."""
    return list(_with_outputs(_blocks(path.read_text("utf-8"), path.relative_to(root).as_posix())))


def blocks_of_docstrings(path: Path, root: Path) -> list[Block]:
    """Return the blocks of a module's docstrings."""
    place = path.relative_to(root).as_posix()
    found: list[Block] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text:
            line = node.body[0].lineno
            scope = f"{place}:{line}"
            inner = _with_outputs(_blocks(inspect.cleandoc(text), place))
            found += [each._replace(line=each.line + line - 1, scope=scope) for each in inner]
    return found


def indented_blocks(text: str) -> Iterator[int]:
    """Find indented code outside of lists, which has no language: the lines where it begins."""
    fence = before = ""
    in_list = False
    for number, line in enumerate(text.splitlines(), 1):
        if match := _FENCE.match(line):
            fence = "" if fence else match[2]
        elif not fence:
            if re.match(r"\s*([-*+]|\d+\.) ", line):
                in_list = True
            elif line and not line.startswith(" "):
                in_list = False
            elif line.startswith("    ") and not before.strip() and not in_list:
                yield number
        before = line


def _blocks(text: str, place: str) -> Iterator[tuple[Block, int]]:
    """Find the blocks, each with its number of empty lines since the block before, -1: others."""
    mark: re.Match[str] | None = None
    lines = enumerate(text.splitlines(), 1)
    gap = -1
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            mark = _MARK.fullmatch(line)
            gap = gap + 1 if gap >= 0 and not line.strip() else -1
            continue
        indent, fence, info = opening.groups()
        inner = []
        for _, each in lines:
            if each.strip() == fence:
                break
            inner.append(each.removeprefix(indent) + "\n")
        else:
            raise ValueError(f"{place}:{number}: the block does not end")
        block = Block(place, number + 1, info.strip(), "".join(inner), scope=place)
        yield _marked(block, mark), gap
        mark, gap = None, 0


def _marked(block: Block, mark: re.Match[str] | None) -> Block:
    if mark is None:
        return block
    if mark[1].startswith("not run"):
        return block._replace(reason=mark[2])
    if mark[1] == "file":
        return block._replace(file=mark[2])
    return block._replace(exit_code=int(mark[2]))


def _with_outputs(blocks: Iterator[tuple[Block, int]]) -> Iterator[Block]:
    before: Block | None = None
    for block, gap in blocks:
        runs = before is not None and (before.language in SHELL or before.language == PYTHON)
        if (
            before is not None
            and runs
            and gap >= 0
            and block.language in _OUTPUT
            and not block.reason
        ):
            if not before.reason:
                yield before._replace(output=block.text)
            before = None
            continue
        if before is not None:
            yield before
        before = block
    if before is not None:
        yield before

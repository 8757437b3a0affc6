"""Runs blocks of Python one after the other; those of a scope share their names, as in a notebook.

Reads a line of JSON for each block from stdin: `file`, `scope`, `output` and `done`, a file that
gets the exit code.
"""

import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def _run(file: str, names: dict[str, Any]) -> int:
    source = Path(file).read_text()
    # For tracebacks, and for Spark, which asks for the source of functions.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), names)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - it is reported, as Python itself would
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Run the blocks."""
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, os.getcwd())
    scopes: dict[str, dict[str, Any]] = {}
    for line in requests:
        request = json.loads(line)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        names = scopes.setdefault(request["scope"], {"__name__": "__main__"})
        code = _run(request["file"], names)
        sys.stdout.flush()
        sys.stderr.flush()
        done = Path(request["done"])
        aside = done.with_suffix(".aside")
        aside.write_text(str(code))
        aside.replace(done)


if __name__ == "__main__":
    main()

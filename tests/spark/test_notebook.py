"""The notebook runs, and its results are those that it shows."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.servers.spark import spark_environment, spark_missing

_NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "audit.ipynb"
_CELL_TIMEOUT_S = 300


def saved() -> nbformat.NotebookNode:
    """Return the notebook as it is in the repository."""
    found: nbformat.NotebookNode = nbformat.read(_NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    return found


def results(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """What the cells print and show; not what goes to stderr."""
    found: list[dict[str, Any]] = []
    for cell in notebook.cells:
        printed = {"stdout": ""}  # it comes in parts, as the kernel sends it
        found.append(printed)
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stdout":
                printed["stdout"] += output.text
            elif output.output_type in ("execute_result", "display_data"):
                data = dict(output.data)
                # The text of an SVG is the address of an object.
                found.append({kind: data[kind] for kind in data if "svg" in kind} or data)
    return found


def execute(folder: Path) -> nbformat.NotebookNode:
    """Run the notebook in a new kernel, in a folder."""
    notebook = saved()
    client = NotebookClient(
        notebook, timeout=_CELL_TIMEOUT_S, kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute()
    return notebook


def test_its_results_are_those_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := spark_missing():
        pytest.skip(reason)
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    shown = results(saved())
    assert any("the server is dead" in each.get("stdout", "") for each in shown)
    assert any("image/svg+xml" in each for each in shown)
    assert results(execute(tmp_path)) == shown


if __name__ == "__main__":
    import os
    from tempfile import TemporaryDirectory

    # Writes the notebook with the results of a new run.
    os.environ.update(spark_environment())
    with TemporaryDirectory() as name:
        done = execute(Path(name))
    for cell in done.cells:
        cell.metadata.clear()  # the times of the run
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    nbformat.write(done, _NOTEBOOK)  # type: ignore[no-untyped-call]

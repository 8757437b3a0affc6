"""Names the extra to install when the modules of an optional part are missing."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

#: What the server imports beyond the client.
SERVER_MODULES: Final = (
    "fastapi", "kazoo", "pyarrow", "pydantic_settings", "rich", "typer", "uvicorn",
)  # fmt: skip


def need_extra(extra: str, part: str, modules: Sequence[str]) -> None:
    """Check that the modules of an extra are installed.

    Parameters:
        part: what needs them, for the message.

    Raises:
        ModuleNotFoundError: some are not; the text has the command that installs them.
    """
    if missing := [each for each in modules if find_spec(each) is None]:
        raise ModuleNotFoundError(
            f"{part} needs {', '.join(missing)}: pip install 'pidlease[{extra}]'", name=missing[0]
        )

"""The errors that end a copy. Each text says what to do.

CopyError
CheckpointError
CopierFencedError
"""


class CopyError(Exception):
    """The copy cannot continue without an operator. No record is lost or doubled.

    ```python
    import asyncio

    from pidlease.copier import Copier, CopyError, CopySettings

    settings = CopySettings(
        source="kafka1:9092",
        destination="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        group="mirror",
        topics=["payments"],
        once=True,
    )
    try:
        asyncio.run(Copier(settings).run())
    except CopyError as error:
        print(f"the copy needs an operator: {error}")
    ```
    """


class CheckpointError(CopyError):
    """A checkpoint in the group's offsets is not a copier's, is damaged, or does not fit.

    ```python
    import asyncio

    from pidlease.copier import CheckpointError, Copier, CopySettings

    settings = CopySettings(
        source="kafka1:9092",
        destination="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        group="mirror",
        topics=["payments"],
        once=True,
    )
    try:
        asyncio.run(Copier(settings).run())
    except CheckpointError as error:
        print(f"no checkpoint of a copier: {error}")
    ```
    """


class CopierFencedError(CopyError):
    """Another copier has taken over the same work. Final for this one.

    ```python
    import asyncio

    from pidlease.copier import Copier, CopierFencedError, CopySettings

    settings = CopySettings(
        source="kafka1:9092",
        destination="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        group="mirror",
        topics=["payments"],
        once=True,
    )
    try:
        asyncio.run(Copier(settings).run())
    except CopierFencedError as error:
        print(f"another copier has taken over: {error}")
    ```
    """

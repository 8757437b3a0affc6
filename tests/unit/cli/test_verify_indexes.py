"""`pidlease verify` on wrong, missing and overlong indexes."""

from pathlib import Path

import pytest

from tests.unit.cli.datadir import TIME_MS, filled


@pytest.mark.parametrize(("suffix", "entry_bytes"), [(".index", 8), (".timeindex", 12)])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_every_bit_of_an_index_entry(
    tmp_path: Path, suffix: str, entry_bytes: int, *, sealed: bool, clean: bool
) -> None:
    data = filled(tmp_path / "d", clean=clean)
    index = data.logs[0 if sealed else 1].with_suffix(suffix)
    if not sealed:
        for log in data.logs[2:]:
            for name in (".log", ".index", ".timeindex"):
                log.with_suffix(name).unlink()
        (data.folder / "durable").unlink()
        for each in (data.path / "snapshots").glob("*/*"):
            each.unlink()
        for folder in (data.path / "snapshots").iterdir():
            folder.rmdir()
    before = index.read_bytes()
    for at in range(entry_bytes):
        content = bytearray(before)
        content[at + entry_bytes] ^= 0x41
        index.write_bytes(content)
        found = data.verify()
        if sealed or clean:
            assert (found.code, found.kinds) == (1, ["index"]), (at, found.output)
            assert len(found.findings) == 1
            assert found.findings[0]["file"].endswith(suffix)
        else:
            assert found.code == 0
            assert "the next start builds it again" in found.notes


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_missing_or_too_long(tmp_path: Path, suffix: str) -> None:
    data = filled(tmp_path / "d")
    index = data.logs[0].with_suffix(suffix)
    content = index.read_bytes()
    index.write_bytes(content + b"\x7f" * 40)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["index"])
    assert "entries point beyond the end of the log" in found.output

    index.unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["index"])
    assert "is missing" in found.output


def test_a_time_index_that_ends_too_early(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    index = data.logs[0].with_suffix(".timeindex")
    index.write_bytes(index.read_bytes()[:-12])
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["index"])
    assert f"the log has {TIME_MS + 26}" in found.output

"""What is saved with the group's offsets, and what is refused of what stands there."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidlease.copier.copy_checkpoint import CopyCheckpoint, read_checkpoint
from pidlease.copier.errors import CheckpointError

GOOD = CopyCheckpoint(200, 1 << 48 | 5, 3, 199, 0, 190, "orders.copy", "cluster-1", "host:1:ab")

numbers = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        CopyCheckpoint, numbers, numbers, numbers, st.integers(-1, 2**63 - 1), numbers, numbers,
        st.text(max_size=99), st.text(max_size=50), st.text(max_size=100), st.text(max_size=32),
        st.booleans(),
    )
)  # fmt: skip
def test_what_is_saved_is_read(checkpoint: CopyCheckpoint) -> None:
    assert read_checkpoint(checkpoint.offset, checkpoint.metadata()) == checkpoint


def test_earlier_versions_read_it_once_the_copy_has_begun() -> None:
    assert "starting" not in json.loads(GOOD.metadata())
    assert json.loads(GOOD._replace(starting=True).metadata())["starting"] is True


def test_it_fits_into_what_kafka_takes() -> None:
    most = 2**63 - 1
    widest = CopyCheckpoint(most, most, most, most, most, most, "t" * 249, "c" * 50, "w" * 100,
                            "s" * 32)  # fmt: skip
    assert len(widest.metadata()) < 1000
    with pytest.raises(CheckpointError, match="Kafka takes no longer ones than 4096"):
        GOOD._replace(who="w" * 4096).metadata()


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("", "was not committed by a copier: it has no metadata"),
        ("somebody's", 'not committed by a copier: its metadata is "somebody\'s"'),
        ("[1]", "was not committed by a copier"),
        ('{"pid": 3}', "was not committed by a copier"),
        ('{"pidlease": 2}', "of version 2; only 1 is known"),
        ('{"pidlease": 1}', "is damaged"),
    ],
)
def test_what_is_not_a_checkpoint_is_refused(metadata: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(7, metadata)


@given(st.data())
def test_a_changed_one_is_refused(data: st.DataObject) -> None:
    """Whatever is changed, of the offset, too: somebody may have reset it."""
    good = GOOD.metadata()
    place = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    changed = good[:place] + other + good[place + 1 :]
    if json_of(changed) == json_of(good):
        return
    with pytest.raises(CheckpointError):
        read_checkpoint(GOOD.offset, changed)


def test_an_offset_that_was_reset_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint at offset 0 is damaged"):
        read_checkpoint(0, GOOD.metadata())


@pytest.mark.parametrize(
    "change",
    [{"pid": -1}, {"sequence": -2}, {"at": -1}, {"first": "0"}, {"who": 3}, {"more": 1},
     {"starting": 1}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    from pidlease.copier import copy_checkpoint as module

    fields = {**json.loads(GOOD.metadata()), **change}
    del fields["crc"]
    fields["crc"] = module._crc(GOOD.offset, fields)
    with pytest.raises(CheckpointError, match="is invalid"):
        read_checkpoint(GOOD.offset, json.dumps(fields))


def json_of(text: str) -> object:
    """What a text says; itself, where that is nothing."""
    try:
        return json.loads(text)
    except ValueError:
        return text

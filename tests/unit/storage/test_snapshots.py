"""Snapshots: what is loaded is what was written, or it is refused."""

import errno
import json
import subprocess
import sys
import time
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from crc32c import crc32c

from pidlease.core.packed import Packed, pack, unpack
from pidlease.core.pid import POLICY_SHIFT, Policy, make_pid
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import RULES
from pidlease.core.state import UNKNOWN_CRC, Appended, ProducerState
from pidlease.storage.files import Files, read_file, write_aside
from pidlease.storage.snapshot_tables import PRODUCERS_SCHEMA, producer_batches, read_producers
from pidlease.storage.snapshots import (
    FORMAT_VERSION,
    LeaseRow,
    Manifest,
    PartitionRows,
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
    _encode_manifest,
)
from tests.sim.files import SimFiles, SimulatedCrash

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path("/data/snapshots")
FILES = ("producers.parquet", "leases.parquet", "manifest.json")
SEEDS = range(15)
#: The producer ids that rows speak of.
NAMES = ProducerNames()

Content = tuple[list[PartitionRows], list[LeaseRow]]


def draw_states(random: Random, count: int) -> dict[int, Packed]:
    """States of all policies, of numbers small and large."""
    found = {}
    for _ in range(count):
        rules = random.choice(list(RULES.values()))
        big = random.choice([10, rules.sequence_max])
        batches = tuple(
            Appended(random.randrange(big), random.randrange(big), n, random.randrange(2**32))
            for n in range(random.randint(1, 5))
        )
        generation = random.randint(0, random.choice([3, rules.generation_max]))
        state = ProducerState(
            generation, batches[-1].last, random.randrange(big), batches, random.randrange(2**62)
        )
        number = random.randrange(1, 2**47)
        named = rules.policy is Policy.EPOCH
        pid = NAMES.take(f"producer {number}") if named else make_pid(rules.policy, number)
        found[pid] = pack(rules, state)
    return found


def draw(seed: int, partitions: int = 4, producers: int = 6) -> Content:
    random = Random(seed)
    rows = [
        PartitionRows(
            TopicPartition(f"topic.{number % 2}", number),
            f"id{number % 2}",
            random.randrange(2**50),
            random.choice([-1, 5]),
            draw_states(random, random.choice([0, producers])),
            (-1, 7)[number % 2],
            (-1, 2**50)[number % 2],
            (0, 2**49)[number % 2],
        )
        for number in range(partitions)
    ]
    leases = [
        LeaseRow(random.randrange(2**52), n, random.choice([-1, 7])) for n in range(producers)
    ]
    return rows, leases


def assert_equal(snapshot: Snapshot, content: Content) -> None:
    rows, leases = content
    assert list(snapshot.leases) == leases
    assert snapshot.producers == {row.partition: dict(row.producers) for row in rows}
    assert snapshot.manifest.offset_vector == {row.partition: row.entry for row in rows}


def newest(files: Files) -> Snapshot | None:
    """What a start would load."""
    store = SnapshotStore(files, FOLDER, names=NAMES)
    for number in store.numbers():
        try:
            return store.load(number)
        except SnapshotError:
            continue
    return None


def write(files: Files, seed: int) -> Manifest:
    return SnapshotStore(files, FOLDER, names=NAMES).write(seed, *draw(seed))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_loaded_is_what_was_written(seed: int) -> None:
    files = SimFiles()
    content = draw(seed, partitions=seed % 5, producers=seed)
    manifest = SnapshotStore(files, FOLDER, names=NAMES).write(99, *content)
    store = SnapshotStore(files.power_loss(seed), FOLDER, names=NAMES)
    assert store.numbers() == [manifest.number] == [1]
    assert store.manifest(1) == manifest
    assert manifest.created_ms == 99
    snapshot = store.load(1)
    assert snapshot.manifest == manifest
    assert_equal(snapshot, content)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_table_has_the_states_as_the_formats_page_says(seed: int) -> None:
    """Other programs read it: a row for each state, its batches from the oldest on."""
    rows, _ = draw(seed)
    found = [
        row
        for batch in producer_batches(rows, {}, NAMES)
        for row in pa.Table.from_batches([batch]).to_pylist()
    ]
    expected = [
        {
            "pid": -1 if NAMES.name(pid) else pid,
            "producer_id": NAMES.name(pid) or "",
            "topic": partition.topic,
            "partition": partition.partition,
            "generation": state.generation,
            "high": state.high,
            "lowest": state.lowest,
            "batches": [batch._asdict() for batch in state.batches],
            "arrival_ms": state.arrival_ms,
        }
        for partition, _, _, _, producers, *_ in rows
        for pid, packed in producers.items()
        for state in [unpack(RULES[Policy(pid >> POLICY_SHIFT)], packed)]
    ]
    key = itemgetter("topic", "partition", "pid", "producer_id")
    assert sorted(found, key=key) == sorted(expected, key=key)


def test_producer_ids_are_kept_and_not_the_numbers_that_stand_for_them() -> None:
    files, name = SimFiles(), TopicPartition("t", 0)
    state = pack(RULES[Policy.EPOCH], ProducerState(3, 7, 7, (Appended(7, 7, 5, 9),), 1))
    store = SnapshotStore(files, FOLDER)
    for number in range(3):
        store.names.take(f"gone {number}")
    pids = {store.names.take(each): state for each in ("a/b", "\u00e4", "x" * 256)}
    ended = store.names.take("ended since")
    store.names.drop(ended)
    store.write(1, [PartitionRows(name, "id", 8, -1, {**pids, ended: state})], [])
    again = SnapshotStore(files, FOLDER)
    found = again.load(1).producers[name]
    assert {again.names.name(pid) for pid in found} == {"a/b", "\u00e4", "x" * 256}
    assert set(found.values()) == {state}


def test_a_hundred_thousand_rows() -> None:
    random = Random(1)
    states = draw_states(random, 100_000)
    rows = [PartitionRows(TopicPartition("t", 0), "id", 5, -1, states)]
    leases = [LeaseRow(number, number, -1) for number in range(100_000)]
    store = SnapshotStore(SimFiles(), FOLDER, names=NAMES)
    started = time.monotonic()
    store.write(0, rows, leases)
    written = time.monotonic()
    snapshot = store.load(1)
    print(f"written in {written - started:.2f} s, loaded in {time.monotonic() - written:.2f} s")
    assert_equal(snapshot, (rows, leases))
    assert snapshot.manifest.rows == {"producers.parquet": 100_000, "leases.parquet": 100_000}


def test_two_are_kept() -> None:
    files = SimFiles()
    for seed in range(1, 6):
        write(files, seed)
        assert (
            SnapshotStore(files, FOLDER, names=NAMES).numbers() == [seed, seed - 1][: min(seed, 2)]
        )
    assert files.list(FOLDER) == ["snapshot-000000000004", "snapshot-000000000005"]


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_byte_is_noticed(name: str) -> None:
    files = SimFiles()
    write(files, 1)
    path = FOLDER / "snapshot-000000000001" / name
    store = SnapshotStore(files, FOLDER, names=NAMES)
    content = read_file(files, path)
    before = store.load(1)
    for position in range(len(content)):
        files.flip(path, position, position % 8)
        try:
            # Whitespace of the outer JSON may be another one; the content may not.
            assert store.load(1) == before, position
            assert name == "manifest.json"
        except SnapshotError:
            pass
        files.flip(path, position, position % 8)
    assert store.load(1) == before


@pytest.mark.parametrize("name", FILES)
def test_any_cut_is_noticed(name: str) -> None:
    files = SimFiles()
    write(files, 1)
    path = FOLDER / "snapshot-000000000001" / name
    store = SnapshotStore(files, FOLDER, names=NAMES)
    content = read_file(files, path)
    for size in range(0, len(content), 1 if len(content) < 2000 else 37):
        files.cut(path, size)
        with pytest.raises(SnapshotError):
            store.load(1)
        files.open(path).write_at([content], 0)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(name: str) -> None:
    files = SimFiles()
    write(files, 1)
    write(files, 2)
    files.remove(FOLDER / "snapshot-000000000002" / name)
    with pytest.raises(SnapshotError):
        SnapshotStore(files, FOLDER, names=NAMES).load(2)
    found = newest(files)
    assert found is not None
    assert found.manifest.number == 1


def test_files_of_two_snapshots_do_not_mix() -> None:
    files = SimFiles()
    write(files, 1)
    write(files, 2)
    one, two = (FOLDER / f"snapshot-{number:012d}" / FILES[0] for number in (1, 2))
    files.rename(one, two)
    with pytest.raises(SnapshotError, match="checksum"):
        SnapshotStore(files, FOLDER, names=NAMES).load(2)


def test_a_newer_format_is_refused() -> None:
    files = SimFiles()
    write(files, 1)
    path = FOLDER / "snapshot-000000000001" / "manifest.json"
    body = json.loads(json.loads(read_file(files, path))["manifest"])
    body["format"] = FORMAT_VERSION + 1
    text = json.dumps(body)
    content = json.dumps({"crc32c": crc32c(text.encode()), "manifest": text}).encode()
    files.open(path).truncate(0)
    files.open(path).write_at([content], 0)
    with pytest.raises(SnapshotError, match="newer"):
        SnapshotStore(files, FOLDER, names=NAMES).load(1)


def test_crcs_of_an_older_rule_are_left_out_and_all_else_is_kept() -> None:
    files = SimFiles()
    write(files, 1)
    path = FOLDER / "snapshot-000000000001" / "manifest.json"
    body = json.loads(json.loads(read_file(files, path))["manifest"])
    del body["crc_rule"]
    text = json.dumps(body)
    content = json.dumps({"crc32c": crc32c(text.encode()), "manifest": text}).encode()
    files.open(path).truncate(0)
    files.open(path).write_at([content], 0)
    found = SnapshotStore(files, FOLDER, names=NAMES).load(1)
    seen = set()
    for rows in draw(1)[0]:
        for pid, packed in rows.producers.items():
            rules = RULES[Policy(pid >> 48)]
            before, now = unpack(rules, packed), unpack(rules, found.producers[rows.partition][pid])
            seen.add(rules.policy)
            batches = tuple(each._replace(crc=UNKNOWN_CRC) for each in before.batches)
            assert now == before._replace(batches=batches)
    assert len(seen) > 1


def test_other_names_in_the_folder_are_left_alone() -> None:
    files = SimFiles()
    files.make_folder(FOLDER)
    for name in ("snapshot-", "snapshot-x", "notes.txt"):
        files.open(FOLDER / name, create=True)
    write(files, 1)
    assert SnapshotStore(files, FOLDER, names=NAMES).numbers() == [1]


# ---------------------------------------------------------------------- crashes and full disks


@pytest.mark.parametrize("torn", [True, False])
def test_a_crash_at_every_step_leaves_the_one_before(torn: bool) -> None:
    """At the third snapshot, so that the removal of the first is among the steps."""
    lost = 0
    step = 0
    while True:
        step += 1
        files = SimFiles(step)
        write(files, 1)
        write(files, 2)
        store = SnapshotStore(files, FOLDER, names=NAMES)
        files.crash_at(step, torn=torn)
        try:
            store.write(3, *draw(3))
        except SimulatedCrash:
            pass
        else:
            break
        for seed in (None, step, -step):
            view = files.process_death() if seed is None else files.power_loss(seed)
            lost += view.lost_names + view.lost_writes
            found = newest(view)
            assert found is not None, (step, seed)
            assert_equal(found, draw(found.manifest.created_ms))
            assert found.manifest.created_ms in (2, 3)
            write(view, 4)
            assert not [name for name in view.list(FOLDER) if "aside" in name]
            again = newest(view.power_loss(seed))
            assert again is not None
            assert again.manifest.created_ms == 4
    assert step > 20
    assert lost > 0


def test_a_snapshot_that_a_start_found_is_durable() -> None:
    """Killed between rename and fsync; retention will trust what the next start found."""
    for step in range(1, 60):
        files = SimFiles(step)
        store = SnapshotStore(files, FOLDER, names=NAMES)
        files.crash_at(step)
        try:
            store.write(1, *draw(1))
        except SimulatedCrash:
            files = files.process_death()
        else:
            return
        if newest(files) is None:
            continue
        for seed in SEEDS:
            assert newest(files.power_loss(seed)) is not None, step


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("make_folder", "*"),
        ("open", "*.parquet"),
        ("write", "*.parquet"),
        ("write", "*manifest*"),
        ("fsync", "*leases*"),
        ("fsync_folder", "*aside*"),
        ("rename", "*"),
    ],
)
def test_a_failed_snapshot_leaves_the_one_before_and_no_litter(
    operation: str, pattern: str
) -> None:
    files = SimFiles()
    write(files, 1)
    store = SnapshotStore(files, FOLDER, names=NAMES)
    for _ in range(3):
        failure = files.fail_next(operation, pattern, errno.EIO)
        with pytest.raises(OSError, match="error"):
            store.write(2, *draw(2))
        assert failure.fired == 1
        assert files.list(FOLDER) == ["snapshot-000000000001"]
    found = newest(files)
    assert found is not None
    assert_equal(found, draw(1))


def test_a_full_disk_at_every_byte() -> None:
    files = SimFiles()
    write(files, 1)
    store = SnapshotStore(files, FOLDER, names=NAMES)
    used = files.tree.used_bytes()
    for room in range(0, 6000, 211):
        files.capacity = used + room
        with pytest.raises(OSError, match="space"):
            store.write(2, *draw(2))
        files.capacity = None
        assert store.numbers() == [1]
        assert files.tree.used_bytes() == used
    assert store.write(2, *draw(2)).number == 2


# ---------------------------------------------------------------------- rows that others wrote


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("pid", 5, "belongs to no policy"),
        ("generation", 2**15, "generation is outside"),
        ("lowest", 2**31, "lowest is outside"),
        ("high", 4, "is not the end of the last batch"),
        ("high", None, "without a value where one is needed"),
        ("batches", [], "0 batches"),
        ("batches", [{"first": 0, "last": 3, "offset": 0, "crc": 0}] * 6, "6 batches"),
        ("batches", [{"first": 2**31, "last": 3, "offset": 0, "crc": 0}], "first is outside"),
        ("partition", 9, "not in the offset vector"),
    ],
)
def test_a_row_that_no_fold_makes_is_refused(column: str, value: object, message: str) -> None:
    """Spark may write a snapshot: whoever writes one can be wrong."""
    row = {
        "pid": make_pid(Policy.KAFKA, 1),
        "producer_id": "",
        "topic": "t",
        "partition": 0,
        "generation": 0,
        "high": 3,
        "lowest": 0,
        "batches": [{"first": 0, "last": 3, "offset": 0, "crc": 0}],
        "arrival_ms": 5,
    }
    name = TopicPartition("t", 0)
    names = ProducerNames()
    assert read_producers([pa.Table.from_pylist([row], PRODUCERS_SCHEMA)], [name], names)[name]
    table = pa.Table.from_pylist([row, {**row, column: value}], PRODUCERS_SCHEMA)
    with pytest.raises(SnapshotError, match=message):
        read_producers([table], [name], names)


def test_neither_pandas_nor_numpy_is_loaded() -> None:
    """Once a fault: pyarrow loaded pandas in the first snapshot, and held producers up."""
    code = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"  # as where it is not installed: a server needs none
        "from pathlib import Path\n"
        "from pidlease.storage.snapshots import LeaseRow, SnapshotStore\n"
        "from tests.sim.files import SimFiles\n"
        "from tests.unit.storage.test_snapshots import FOLDER, draw\n"
        "sys.modules.pop('pandas', None)\n"
        "assert sys.modules['numpy'] is None\n"
        "store = SnapshotStore(SimFiles(), FOLDER)\n"
        "store.write(0, *draw(3))\n"
        "store.load(1)\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_table_of_other_columns_is_refused() -> None:
    files = SimFiles()
    store = SnapshotStore(files, FOLDER, names=NAMES)
    store.write(0, *draw(3))
    folder = FOLDER / "snapshot-000000000001"
    content = read_file(files, folder / "leases.parquet")
    manifest = store.manifest(1)
    sums = {**manifest.checksums, "producers.parquet": manifest.checksums["leases.parquet"]}
    wrong = replace(manifest, checksums=sums)
    write_aside(files, folder / "producers.parquet", [content])
    write_aside(files, folder / "manifest.json", [_encode_manifest(wrong)])
    with pytest.raises(SnapshotError, match="columns"):
        store.load(1)


@pytest.mark.parametrize("seed", range(10))
def test_a_removed_snapshot_does_not_come_back(seed: int) -> None:
    """One that the log ends before would count lost batches as appended when the log has grown."""
    files = SimFiles()
    number = write(files, seed).number
    files = files.process_death()
    SnapshotStore(files, FOLDER, names=NAMES).remove(number)
    assert newest(files.power_loss(seed)) is None

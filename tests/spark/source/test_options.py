"""Options of the source: invalid ones are refused before anything is read."""

import pickle
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import OptionError
from pidlease.spark.partition_offsets import offsets_from_json, offsets_to_json
from pidlease.spark.reader import batch_columns as columns
from pidlease.spark.reader.log_parts import KafkaPart, SegmentPart
from pidlease.spark.reader.send_rows import SCHEMA
from pidlease.spark.source.settings import (
    EARLIEST,
    LATEST,
    PartitionChoice,
    read_settings,
    schema_of,
)
from pidlease.spark.source.source_logs import chosen
from pidlease.spark.source.stream_reader import limited
from pidlease.spark.spark_options import check_names

WHERE = {"path": "/data"}
GOOD = {**WHERE, "subscribe": "t"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({**GOOD, "startingOffset": "x"}, "is startingOffsets meant"),
        ({**GOOD, "kafka.group.id": "x"}, "of Kafka's settings these are"),
        ({**GOOD, "zzz": "x"}, "there is no option zzz; there are assign"),
        ({**GOOD, "minPartitions": "4"}, "there is no option minPartitions"),
        ({"subscribe": "t"}, "either path"),
        ({**GOOD, "kafka.bootstrap.servers": "a:1"}, "either path"),
        (WHERE, "not 0 of them"),
        ({**GOOD, "assign": "{}"}, "not 2 of them"),
        ({**WHERE, "assign": "{}"}, "assign is JSON such as"),
        ({**WHERE, "assign": '{"t": 1}'}, "assign is JSON such as"),
        ({**WHERE, "assign": '{"t": [-1]}'}, "assign is JSON such as"),
        ({**WHERE, "subscribe": ","}, "subscribe is names"),
        ({**WHERE, "subscribePattern": "("}, "subscribePattern"),
        ({**GOOD, "startingOffsets": "first"}, "startingOffsets is JSON"),
        ({**GOOD, "startingOffsets": "[1]"}, "startingOffsets is JSON"),
        ({**GOOD, "startingOffsets": '{"t": {"a": 1}}'}, "startingOffsets is JSON"),
        ({**GOOD, "startingOffsets": '{"t": {"0": -3}}'}, "-3 is no offset of t-0"),
        ({**GOOD, "startingOffsets": "latest"}, "startingOffsets may not be latest"),
        ({**GOOD, "startingOffsets": '{"t": {"0": -1}}'}, "t-0 may not be latest"),
        ({**GOOD, "endingOffsets": "earliest"}, "endingOffsets may not be earliest"),
        ({**GOOD, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is 1 or more"),
        ({**GOOD, "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger is a whole number"),
        ({**GOOD, "failOnDataLoss": "yes"}, "failOnDataLoss is true or false"),
        ({**GOOD, "rows": "record"}, "rows is records or sends"),
        ({**GOOD, "rows": "sends", "includeHeaders": "true"}, "includeHeaders"),
        ({**GOOD, "timeoutSeconds": "0"}, "timeoutSeconds is 1 or more"),
        ({**GOOD, "kafka.security.protocol": "SSL"}, "goes with kafka.bootstrap.servers"),
        ({**GOOD, "kafka.sasl.kerberos.service.name": "x"}, "use SCRAM-SHA-512"),
    ],
)
def test_invalid_options_are_refused(options: Mapping[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read_settings(options, streaming=False)


def test_a_stream_has_other_defaults_and_no_end() -> None:
    assert read_settings(GOOD, streaming=True).starting == LATEST
    assert read_settings(GOOD, streaming=False).starting == EARLIEST
    with pytest.raises(OptionError, match=r"endingOffsets goes with spark.read"):
        read_settings({**GOOD, "endingOffsets": "latest"}, streaming=True)


def test_names_are_known_in_any_case() -> None:
    check_names(["STARTINGOFFSETS", "rows"], ["startingOffsets", "rows"])
    with pytest.raises(OptionError, match="no option STARTINGOFSETS; is startingOffsets meant"):
        check_names(["STARTINGOFSETS"], ["startingOffsets", "rows"])


@pytest.mark.parametrize("rows", ["records", "sends"])
@pytest.mark.parametrize("headers", ["true", "false"])
def test_columns_are_the_same_in_spark_and_in_arrow(rows: str, headers: str) -> None:
    found = to_arrow_schema(schema_of({"rows": rows, "includeHeaders": headers}), timezone="UTC")
    expected: pa.Schema = SCHEMA
    if rows == "records":
        expected = columns.schema(headers=headers == "true")
    assert found.equals(expected)


def test_parts_travel_and_do_not_show_passwords() -> None:
    kafka = KafkaPart("a:1", "t", 0, 1, 2, (("sasl.password", "secret"),), 5.0)
    files = SegmentPart("/data", "t", 0, (0, 10), 1, 12)
    assert pickle.loads(pickle.dumps((kafka, files))) == (kafka, files)
    assert "secret" not in repr(kafka)


def test_a_pattern_is_searched_for_in_the_names() -> None:
    """As `findFirstIn` of Spark's SubscribePatternStrategy."""
    topics = {"orders": 1, "old-orders": 2, "payments": 1}
    found = chosen(PartitionChoice(pattern="orders"), topics)
    assert found == [("old-orders", 0), ("old-orders", 1), ("orders", 0)]
    assert chosen(PartitionChoice(pattern="^orders$"), topics) == [("orders", 0)]
    assert chosen(PartitionChoice(pattern="none"), topics) == []


def test_a_part_is_narrowed_to_the_segments_that_are_wanted() -> None:
    part = SegmentPart("/data", "t", 0, (0, 10, 20), 5, 25)
    assert part.within(0, 30) == part
    assert part.within(10, 20).segments == (10,)
    assert part.within(9, 21).segments == (0, 10, 20)
    assert part.within(22, 23).segments == (20,)


def test_offsets_are_written_as_sparks_kafka_source_does() -> None:
    offsets = {TopicPartition("t", 10): 3, TopicPartition("t", 2): 5, TopicPartition("s", 0): 0}
    assert offsets_to_json(offsets) == {"s": {"0": 0}, "t": {"2": 5, "10": 3}}
    assert offsets_from_json(offsets_to_json(offsets)) == offsets


@pytest.mark.parametrize("most", [1, 7, 100, 149, 150, 1000])
def test_a_limit_is_shared_by_how_much_there_is(most: int) -> None:
    first, second, third = (TopicPartition("t", number) for number in range(3))
    begin = {first: 5, second: 0, third: 0}
    end = {first: 105, second: 50, third: 0}
    found = limited(begin, end, most)
    taken = {place: found[place] - begin[place] for place in found}
    assert sum(taken.values()) == min(most, 150)
    assert abs(taken[first] - min(most, 150) * 2 / 3) <= 1
    assert all(0 <= taken[place] <= end[place] - begin[place] for place in taken)

"""The messages by which copies and Spark queries report their progress, and operators see it."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pidlease.http_api.lease_messages import Message

JOBS_PATH: Final = "/v1/jobs"
#: The longest name, text of a side, and reason.
NAME_MAX: Final = 256
SIDE_MAX: Final = 500
REASON_MAX: Final = 1000
#: The most partitions of one report.
PARTITIONS_MAX: Final = 20
#: How often a job reports.
REPORT_SECONDS: Final = 5.0
_JSON_MAX: Final = 2**53 - 1

Kind = Literal["copy", "spark"]
Count = Annotated[int, Field(ge=0, le=_JSON_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]
Side = Annotated[str, Field(max_length=SIDE_MAX)]


class JobPartition(Message):
    """The progress of one partition of the source."""

    topic: Annotated[str, Field(min_length=1, max_length=249)]
    partition: Annotated[int, Field(ge=0, le=2**31 - 1)]
    offset: Count = Field(description="the first offset that is not copied")
    lag: Count = Field(description="offsets of the source from there on")


class JobReport(Message):
    """The progress of one process of a job; a later report replaces it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "copy", "job": "mirror", "process": "host-a:4711:9f",
                          "records": 120_000, "lag": 40, "started_ms": 1_790_000_000_000}]
        }
    )  # fmt: skip

    kind: Kind
    job: Name = Field(description="the group of a copy; the name or id of a Spark query")
    process: Name = Field(description="one of the job's processes, or one run of a query")
    state: Literal["running", "ended", "failed"] = "running"
    reason: Annotated[str, Field(max_length=REASON_MAX)] = Field(
        default="", description="of a failure"
    )
    source: Side = ""
    destination: Side = ""
    started_ms: Count = Field(description="when the process started, in ms since 1970")
    records: Count = Field(description="records acknowledged since then, with duplicates")
    duplicates: Count = Field(default=0, description="of these, those that were stored before")
    lag: Count | None = Field(
        default=None, description="records of the source that are not copied; null: not known"
    )
    step_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=0.0, description="the usual time between two acknowledgements, as of a micro-batch"
    )
    partitions: Count = Field(
        default=0, description="partitions of the source that the process copies"
    )
    lagging: Annotated[list[JobPartition], Field(max_length=PARTITIONS_MAX)] = Field(
        default_factory=list, description="those of them with the largest lags, the largest first"
    )


class JobProcess(JobReport):
    """The last report of a process, and what the server has seen of it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=None)

    reported_ms: int = Field(description="when the report came, in ms since 1970")
    silent: bool = Field(description="whether a report is overdue: the process may have crashed")
    rate: float = Field(description="records a second between its last two reports")


class JobState(Message):
    """A job by the reports of its processes, since this server first heard of it."""

    kind: Kind
    job: str
    state: Literal["running", "stalled", "silent", "ended", "failed"]
    records: int = Field(description="records acknowledged, with duplicates")
    duplicates: int
    lag: int | None = Field(description="by the last reports; null: not known")
    rate: float = Field(description="records a second of the processes that report")
    lost_seconds: float = Field(
        description="time in which no record was acknowledged although there was a lag"
    )
    first_ms: int = Field(description="when the first report came, in ms since 1970")
    processes: list[JobProcess] = Field(description="the last to report first")


class JobsAnswer(Message):
    """The jobs that report to this server, the last to report first."""

    jobs: list[JobState]

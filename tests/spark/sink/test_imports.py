"""Spark's Python workers load what they need: each process pays for it again."""

import pkgutil
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")


def loaded(imports: str) -> set[str]:
    """The modules of a process after some imports."""
    program = f"import sys\n{imports}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return set(done.stdout.decode().split())


def test_a_writer_loads_no_reader() -> None:
    modules = loaded(
        "from pidlease.spark.data_source import PidleaseDataSource\n"
        "from pidlease.spark.sink.sink_writer import StreamSink"
    )
    packages = {name.split(".")[2] for name in modules if name.startswith("pidlease.spark.")}
    assert "sink" in packages
    assert packages.isdisjoint({"reader", "source", "audit", "rebuild"})


def test_the_data_source_alone_loads_no_client() -> None:
    """Spark starts several processes for each query that only look at the data source's class."""
    modules = loaded("from pidlease.spark.data_source import PidleaseDataSource")
    assert "pidlease.spark.data_source" in modules
    assert {name for name in modules if name.startswith("pidlease.")} <= {
        "pidlease.kafka", "pidlease.kafka.errors", "pidlease.spark", "pidlease.spark.data_source",
        "pidlease.spark.errors", "pidlease.spark.pyspark_versions", "pidlease.spark.spark_options",
    }  # fmt: skip


def test_a_task_of_the_audit_loads_no_client_and_no_sink() -> None:
    modules = loaded("import pidlease.spark.audit.suspect_sends")
    assert "pidlease.spark.audit.suspect_sends" in modules
    assert not {"pidlease.client", "pidlease.copier", "pidlease.spark.sink"} & modules


def test_every_name_of_the_package_is_loaded_when_it_is_used() -> None:
    import pidlease.spark as package

    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = package.no_such_name  # type: ignore[attr-defined]


def test_no_module_is_called_as_a_name_of_the_package() -> None:
    """Its import would put the module in the name's place."""
    import pidlease.spark as package

    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    assert "errors" in modules
    assert not modules & set(package.__all__)

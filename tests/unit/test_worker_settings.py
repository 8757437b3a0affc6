"""The settings of each worker, and those with which several workers cannot run."""

from pathlib import Path
from typing import Any

import pytest

from pidlease.storage.errors import DataFolderError
from proxy.configuration.component_configs import check_exposure
from proxy.configuration.settings import Settings, SettingsError, load_settings
from proxy.workers.worker_settings import check_workers, worker_settings

_SHARED: dict[str, Any] = {
    "log": "kafka", "upstream": "kafka1:9092", "zookeeper": "zk1:2181/p", "shared": True,
    "workers": 3,
}  # fmt: skip


def _settings(**more: Any) -> Settings:
    return load_settings(None, {**_SHARED, **more})


def test_each_has_ports_and_a_folder_of_its_own() -> None:
    settings = _settings(
        data_dir="/d", kafka_listen="[::1]:19092", http_listen="0.0.0.0:8080",
        kafka_advertise="proxy1:29092",
    )  # fmt: skip
    first, third = (worker_settings(settings, number) for number in (1, 3))
    assert (first.data_dir, third.data_dir) == (Path("/d"), Path("/d/workers/3"))
    assert third.kafka_listen == "[::1]:19095"
    assert third.kafka_advertise == "proxy1:29095"
    assert (third.http_listen, third.http_advertise) == ("0.0.0.0:8083", "0.0.0.0:8083")
    assert (first.kafka_listen, first.workers) == ("[::1]:19093", 1)
    assert third.metrics_listen is None
    apart = worker_settings(_settings(metrics_listen="127.0.0.1:9100"), 2)
    assert apart.metrics_listen == "127.0.0.1:9102"


def test_several_need_shared() -> None:
    with pytest.raises(SettingsError, match=r"workers: .*needs shared"):
        load_settings(None, {"workers": 2})
    assert load_settings(None, {"workers": 1}).workers == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kafka_listen": "127.0.0.1:65533"}, "--kafka-listen: 3 workers .* 65536 is no port"),
        ({"http_advertise": "h:65533"}, "--http-advertise: 3 workers"),
        ({"kafka_listen": "127.0.0.1:8077"}, "the 3 ports above each of 8077 and 8080"),
        ({"kafka_listen": "127.0.0.1:8083"}, "the 3 ports above each of 8083 and 8080"),
        ({"metrics_listen": "127.0.0.1:8082"}, "--http-listen and --metrics-listen: 3 workers"),
        ({"metrics_listen": "127.0.0.1:65533"}, "--metrics-listen: 3 workers .* is no port"),
    ],
)
def test_ports_that_do_not_suffice(tmp_path: Path, given: dict[str, str], text: str) -> None:
    with pytest.raises(DataFolderError, match=text):
        check_workers(_settings(data_dir=tmp_path, **given))
    check_workers(_settings(data_dir=tmp_path, kafka_listen="127.0.0.1:8084"))


def test_pids_from_a_file_are_moved_first(tmp_path: Path) -> None:
    sequence = tmp_path / "sequence"
    sequence.mkdir()
    (sequence / "blocks").touch()
    with pytest.raises(DataFolderError, match="once without --workers"):
        check_workers(_settings(data_dir=tmp_path))
    (sequence / "zookeeper").touch()
    check_workers(_settings(data_dir=tmp_path))


def test_others_must_reach_the_http_port() -> None:
    given = {"kafka_advertise": "h:9092", "http_listen": "0.0.0.0:8080", "insecure": True}
    with pytest.raises(DataFolderError, match="--http-advertise"):
        check_exposure(_settings(**given))
    check_exposure(_settings(**given, http_advertise="h:8080"))
    check_exposure(load_settings(None, {**given}))

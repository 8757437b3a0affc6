"""The Helm chart: what it renders is valid for Kubernetes, and says what the server needs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pidlease import __version__
from proxy.configuration.component_configs import check_exposure, security_config
from proxy.configuration.settings import Settings, load_settings
from tests.observability.install import PrometheusUnavailableError, tool

_ROOT: Final = Path(__file__).resolve().parents[2]
_CHART: Final = _ROOT / "deploy" / "helm" / "pidlease"
_SETS: Final = sorted((Path(__file__).parent / "chart_values").glob("*.yaml"))
_SETTINGS: Final = {f"PIDLEASE_{name.upper()}" for name in Settings.model_fields}
#: Versions of Kubernetes: the lowest that Chart.yaml allows, and a recent one.
_VERSIONS: Final = ("1.27", "1.33")
_CLUSTER: Final = ("--kube-version", _VERSIONS[0])
_TEMPLATE: Final = ("template", "pidlease", _CHART, "--namespace", "ingest", *_CLUSTER)
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
#: Kinds of the Prometheus operator, which Kubernetes' schemas do not have.
_OPERATOR: Final = {"ServiceMonitor", "PrometheusRule"}


def _helm() -> str | None:
    own = _ROOT / "build" / "helm" / "helm"
    return shutil.which("helm") or (str(own) if own.is_file() else None)


needs_helm = pytest.mark.skipif(
    _helm() is None, reason="there is no helm: `make helm` builds one, with go"
)


def _run(*arguments: str | Path, fails: bool = False) -> str:
    helm = _helm()
    assert helm is not None
    done = subprocess.run(
        [helm, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def _rendered(*options: str | Path) -> list[dict[str, Any]]:
    text = _run(*_TEMPLATE, *options)
    return [each for each in yaml.safe_load_all(text) if each]


def _one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def _server(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's specification, and the variables of the server."""
    pod = _one(documents, "StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, {each["name"]: each.get("value") for each in container["env"]}


def test_its_version_is_the_packages() -> None:
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_it_has_the_alerts_and_all_dashboards() -> None:
    linked = {each.name: each.resolve() for each in (_CHART / "files").iterdir()}
    dashboards = _ROOT / "deploy" / "grafana" / "dashboards"
    expected = {each.name: each for each in dashboards.iterdir()}
    expected["alerts.yml"] = _ROOT / "deploy" / "prometheus" / "alerts.yml"
    assert linked == expected


def test_the_schema_has_each_value() -> None:
    schema = json.loads((_CHART / "values.schema.json").read_text())
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert set(schema["properties"]) == {*values, "global"}
    page = (_ROOT / "docs" / "operate" / "install.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    for text in (example, *(path.read_text() for path in _SETS)):
        jsonschema.validate(yaml.safe_load(text), schema)
    for wrong in ({"replica": 1}, {"replicas": 0}, {"settings": {"lease-seconds": 60}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@needs_helm
@pytest.mark.parametrize("path", _SETS, ids=lambda path: path.stem)
def test_what_it_renders_is_valid(path: Path) -> None:
    assert "0 chart(s) failed" in _run("lint", "--strict", *_CLUSTER, _CHART, "--values", path)
    documents = _rendered("--values", path)
    for version in _VERSIONS:
        for document in documents:
            if document["kind"] not in _OPERATOR:
                kubernetes_validate.validate(document, version, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(set(names)) == len(names)
    pod, variables = _server(documents)
    own = {name for name in variables if name.startswith("PIDLEASE_")}
    assert own <= _SETTINGS
    # Kubernetes would set PIDLEASE_SERVICE_HOST and others, which the server refuses.
    assert pod["enableServiceLinks"] is False
    stop = int(variables["PIDLEASE_STOP_SECONDS"]) + int(variables["PIDLEASE_STOP_DELAY_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] > stop


@needs_helm
def test_a_standby(tmp_path: Path) -> None:
    (path,) = (each for each in _SETS if each.stem == "standby")
    documents = _rendered("--values", path)
    stateful = _one(documents, "StatefulSet")["spec"]
    assert (stateful["replicas"], stateful["updateStrategy"]["type"]) == (2, "OnDelete")
    assert stateful["podManagementPolicy"] == "Parallel"
    (container,) = stateful["template"]["spec"]["containers"]
    secrets = {
        each["name"]: each["valueFrom"]["secretKeyRef"]["name"]
        for each in container["env"]
        if "valueFrom" in each
    }
    assert secrets == {
        "PIDLEASE_UPSTREAM_USERNAME": "pidlease-kafka-user",
        "PIDLEASE_UPSTREAM_PASSWORD": "pidlease-kafka-user",
        "PIDLEASE_ZOOKEEPER_DIGEST": "pidlease-zookeeper",
    }
    assert {probe: container[probe]["httpGet"]["scheme"] for probe in _PROBES} == dict.fromkeys(
        _PROBES, "HTTPS"
    )
    assert all(
        each["mountPath"].startswith("/etc/pidlease/") and each["readOnly"]
        for each in container["volumeMounts"]
        if each["name"] != "data"
    )


@needs_helm
@pytest.mark.parametrize("secured", [True, False])
def test_active_servers(secured: bool, tmp_path: Path) -> None:
    """Each pod says where it is itself, with settings that the server accepts."""
    (path,) = (each for each in _SETS if each.stem == "shared")
    plain = ("--set", "tls.secret=,tls.serverPrincipals=,insecure=true")
    documents = _rendered("--values", path, *(() if secured else plain))
    stateful = _one(documents, "StatefulSet")["spec"]
    assert (stateful["replicas"], stateful["updateStrategy"]["type"]) == (3, "RollingUpdate")
    pod, variables = _server(documents)
    names = list(variables)  # Kubernetes replaces $(POD) if it stands before
    assert names.index("POD") < names.index("PIDLEASE_KAFKA_ADVERTISE")
    services = [each for each in documents if each["kind"] == "Service"]
    (service,) = (each for each in services if each["spec"].get("clusterIP") == "None")
    host = f"pidlease-1.{service['metadata']['name']}.ingest.svc"
    assert stateful["serviceName"] == service["metadata"]["name"]
    given = {
        name.removeprefix("PIDLEASE_").lower(): str(value).replace("$(POD)", "pidlease-1")
        for name, value in variables.items()
        if name.startswith("PIDLEASE_")
    }
    # As the image has them.
    given |= {"data_dir": str(tmp_path), "kafka_listen": "0.0.0.0:9092",
              "http_listen": "0.0.0.0:8080"}  # fmt: skip
    settings = load_settings(None, given)
    check_exposure(settings)
    assert (settings.shared, settings.coordinated_by_kafka) == (True, True)
    assert settings.kafka_advertise == f"{host}:9092"
    assert settings.http_advertise == f"{host}:8080"
    assert (security_config(settings).members is not None) is secured
    assert bool([each for each in pod.get("volumes", []) if each["name"] == "tls"]) is secured
    ingress = _one(documents, "NetworkPolicy")["spec"]["ingress"]
    own = stateful["selector"]
    assert {"from": [{"podSelector": own}], "ports": [{"port": "http"}]} in ingress


@pytest.fixture
def monitored() -> list[dict[str, Any]]:
    (path,) = (each for each in _SETS if each.stem == "monitored")
    return _rendered("--values", path)


@needs_helm
def test_the_operators_rules(monitored: list[dict[str, Any]], tmp_path: Path) -> None:
    rules = _one(monitored, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((_ROOT / "deploy/prometheus/alerts.yml").read_text())
    try:
        promtool = tool("promtool")
    except PrometheusUnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    command = [str(promtool), "check", "rules", str(tmp_path / "rules.yml")]
    subprocess.run(command, capture_output=True, timeout=120, check=True)


@needs_helm
def test_what_is_scraped(monitored: list[dict[str, Any]]) -> None:
    """Both servers, also while they are not ready, under the job that the alerts name."""
    selector = _one(monitored, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    (service,) = (
        each
        for each in monitored
        if each["kind"] == "Service" and selector.items() <= each["metadata"]["labels"].items()
    )
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["metadata"]["labels"]["app.kubernetes.io/name"] == "pidlease"


@needs_helm
def test_the_dashboards(monitored: list[dict[str, Any]]) -> None:
    found: dict[str, Any] = {}
    for each in monitored:
        if each["kind"] == "ConfigMap":
            assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
            found |= each["data"]
    dashboards = _ROOT / "deploy" / "grafana" / "dashboards"
    assert {name: json.loads(text) for name, text in found.items()} == {
        each.name: json.loads(each.read_text()) for each in dashboards.iterdir()
    }


@needs_helm
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("insecure=false", "name a certificate by tls.secret"),
        ("log=kafka", "needs kafka.upstream"),
        ("replicas=2", "need log=kafka, and not coordination=files"),
        ("shared=true", "need log=kafka, and not coordination=files"),
        ("log=kafka,kafka.upstream=k:9092,shared=true,kafka.advertise=h:1", "by its own name"),
        (
            "log=kafka,kafka.upstream=k:9092,shared=true,tls.secret=s",
            "needs tls.serverPrincipals",
        ),
        ("coordination=kafka", "coordination=kafka needs log=kafka"),
        (
            "log=kafka,kafka.upstream=k:9092,replicas=2,coordination=files",
            "where the second server stands by",
        ),
        (
            "log=kafka,kafka.upstream=k:9092,coordination=kafka,zookeeper.servers=z:2181",
            "kafka and zookeeper.servers are two coordinators",
        ),
        ("kafka.sasl.mechanism=PLAIN", "needs kafka.sasl.secret"),
        ("log=kafka,kafka.upstream=k:9092,replicas=3", "more than 2 replicas need shared=true"),
        ("log=files", "log"),
    ],
)
def test_values_that_cannot_work(options: str, text: str) -> None:
    given = ("--set", f"insecure=true,{options}")
    assert text in _run(*_TEMPLATE, *given, fails=True)

"""The files of deploy/ name only what exists: metrics, options, settings, pages, runbook entries."""

import json
import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from ruamel.yaml import YAML
from typer.main import get_command

from capture.archive.iceberg_state import CatalogState
from capture.cli.app import make_app as make_capture_app
from capture.config.load import load
from capture.ingest.board import ArchiveState, BoardState, Heard, NodeState, StreamState
from capture.node.metrics import NodeCollector
from capture.node.status.pipeline_metrics import pipeline_metrics
from capture.node.status.pipelines import PipelinesStatus, PipelineState, RunState
from capture.node.status.status import Status
from capture.node.status.status_page import metrics
from capture.node.worker_metrics import _Gathered
from capture.partitioners import UNDECODABLE
from capture.verification.outputs import prometheus_failure
from natty import Natty
from natty.cli.app import make_app as make_natty_app
from natty.metrics import telemetry

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
APPS = {"natty": make_natty_app, "capture": make_capture_app}
METRIC = re.compile(r"\b(?:natty|capture)_[a-z][a-z_]*")
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
MANIFESTS = DEPLOY / "kubernetes" / "capture.yaml"
HELM = DEPLOY / "helm" / "capture"
RUNBOOK = ROOT / "docs" / "runbook.md"
NO_HELM = "needs helm-python-sdk, which is large and not a part of the extra `test`"
NODE_COUNTERS = ("messages", "blocks", "bytes", "failures", "handed_back", "healed", UNDECODABLE)


def read(path):
    return list(YAML(typ="safe").load_all(path.read_text()))


def alerts():
    (document,) = read(ALERTS)
    return [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]


def expose(*collectors):
    registry = CollectorRegistry(auto_describe=False)
    for one in collectors:
        registry.register(one)
    return generate_latest(registry).decode()


def node_metrics():
    node = SimpleNamespace(
        config=SimpleNamespace(stream="ORDERS"),
        stored=dict.fromkeys(NODE_COUNTERS, 0),
        writer=SimpleNamespace(unfit={"id": 1}),
        natty=None,
        store_trouble="",
    )
    keeper = SimpleNamespace(
        config=SimpleNamespace(pipeline=[SimpleNamespace(name="one")]),
        counts={},  # of runs: there was none
    )

    supervisor = SimpleNamespace(restarts={1: 0})
    return expose(NodeCollector(SimpleNamespace(nodes=[node], keeper=keeper)), _Gathered(supervisor, {}))


def archive_metrics():
    stream = StreamState(stream="ORDERS", first=1, last=2, acked=2, pending=0, unacked=0, missing=0, awaited=0)
    state = ArchiveState(
        archive="ORDERS",
        leader="node-1",
        token=1,
        term=1,
        since=1.0,
        swept=1.0,
        seconds=0.1,
        every=10.0,
        manifest=1,
        blocks=1,
        messages=2,
        bytes=3,
        files=0,
        rows=0,
        table_bytes=0,
        streams=[stream],
    )
    entry = CatalogState(stream="ORDERS", entry="lake.orders")
    node = NodeState(node="node-1", version="0", since=1.0, every=10.0, catalogs=[entry])
    board = BoardState(state, 1.0, [Heard(node, 1.0)])
    return metrics([Status("ORDERS", board, "node-1", "node-1", asked=frozenset({"ORDERS"}))])


def pipelines_metrics():
    run = RunState(number=1, began=1.0, ended=2.0, rows_in=1, rows_out=1, bytes_in=1, bytes_out=1, leader="node-1")
    one = PipelineState(
        name="one",
        state="idle",
        schedule="",
        run=1,
        good=2.0,
        behind=1,
        waiting_since=1.0,
        rows=1,
        files=1,
        bytes=1,
        quarantined=0,
        runs=[run],
    )
    return pipeline_metrics(PipelinesStatus("ORDERS", "node-1", [one]), 3.0)


@pytest.fixture(scope="module")
def exported():
    """The names of all metrics that deploy/ may use, as the code writes them."""
    described = [name for one in (*telemetry.TOTALS, *telemetry.NOW) for name in (one.name, f"{one.name}_total")]
    totals = {one.name for one in telemetry.TOTALS}
    services = {name for name in described if name.endswith("_total") == (name.removesuffix("_total") in totals)}
    text = node_metrics() + archive_metrics() + pipelines_metrics() + prometheus_failure("ORDERS", 1.0)
    text += expose(telemetry.collector(Natty("nats://localhost:1")))
    return services | {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_each_metric_of_the_alerts_is_exported(exported):
    used = {name for rule in alerts() for name in METRIC.findall(rule["expr"])}
    assert len(used) > 25
    assert used - exported == set()


def test_each_metric_of_the_dashboard_is_exported(exported):
    dashboard = json.loads((DEPLOY / "grafana" / "capture.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    used = {name for expression in targets for name in METRIC.findall(expression)}
    assert len(used) > 25
    assert used - exported == set()
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(identifiers) == len(set(identifiers))


def test_each_alert_has_a_summary_a_severity_and_an_entry_in_the_runbook_that_has_no_other_entries():
    headings = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in alerts()] == headings
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_tests_of_the_alerts_name_alerts_that_exist():
    (document,) = read(DEPLOY / "prometheus" / "alerts_test.yml")
    tested = {one["alertname"] for each in document["tests"] for one in each["alert_rule_test"]}
    assert tested <= {rule["alert"] for rule in alerts()}


def check_command(words):
    """Assert that the command exists, and has each option. A word in capitals is an argument."""
    command = get_command(APPS[words[0]]())
    rest = words[1:]
    while rest and not rest[0].startswith("--") and (children := getattr(command, "commands", {})):
        assert rest[0] in children, words
        command, rest = children[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"--log-format", "--log-level", "--version"}  # before or after the command
    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known, words


@pytest.mark.parametrize("page", ["runbook.md", "operating.md"])
def test_each_command_of_the_pages_exists(page):
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"`((?:natty|capture) [^`|]+)`", text)
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += re.findall(r"^(?:sudo -u capture )?(?:/opt/capture/bin/)?((?:natty|capture) .*)", block, re.MULTILINE)
    assert found
    for line in found:
        check_command(shlex.split(line.split(">")[0], comments=True))


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_each_unit_runs_a_command_that_exists_with_options_that_exist(unit):
    (line,) = re.findall(r"^ExecStart=/opt/capture/bin/(.*)$", unit.read_text(), re.MULTILINE)
    check_command(shlex.split(line))
    assert "UMask=" in unit.read_text()
    defaults = re.findall(r"(\w+)=", " ".join(re.findall(r"^Environment=(.*)$", unit.read_text(), re.MULTILINE)))
    assert set(re.findall(r"\$\{?(\w+)", line)) <= set(defaults)
    for option, value in pairwise(shlex.split(line)):
        if re.fullmatch("--(port|metrics|cert|key|token-file)", option):
            assert value.startswith("${"), "two instances on one machine need two"


def test_metrics_are_not_served_on_the_port_of_node_exporter():
    files = [*(path for path in DEPLOY.rglob("*") if path.is_file()), ROOT / "docker-compose.yml"]
    assert [path.name for path in files if re.search(r"\b9100\b", path.read_text())] == []


def containers(documents):
    for document in documents:
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template", {})
        for container in template.get("spec", {}).get("containers", []):
            yield document, template["spec"], container


def check_manifests(documents):
    ran = []
    for _document, pod, container in containers(documents):
        assert container["command"] == ["with-store"]  # of the image: the store's credentials come from a file
        check_command(container["args"])
        ran.append(container["args"][1])
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert all("secretKeyRef" not in str(variable) for variable in container["env"])
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe := container.get(kind):
                assert probe["httpGet"]["path"] == ("/readyz" if kind == "readinessProbe" else "/livez")
                assert probe["httpGet"]["scheme"] == "HTTPS"
    for document in documents:
        if document["kind"] == "StatefulSet":
            grace = document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert grace >= 30 + 10  # `drain`, and the time for hooks and threads
    return ran


def test_the_manifests_run_commands_that_exist_and_secrets_are_files():
    documents = read(MANIFESTS)
    assert check_manifests(documents) == ["run", "serve", "verify"]
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"StatefulSet", "Deployment", "CronJob", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"}
    (kustomization,) = read(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert kustomization["resources"] == ["capture.yaml"]


def test_the_configuration_of_the_chart_can_be_used(tmp_path):
    (document,) = [one for one in read(MANIFESTS) if one["kind"] == "ConfigMap"]
    (tmp_path / "capture.toml").write_text(document["data"]["capture.toml"])
    found = load(tmp_path / "capture.toml")
    assert (found.stream, found.drain) == ("ORDERS", 30.0)


def test_the_chart_renders_to_the_manifests():
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")
    with helm.Chart.load(str(HELM)) as chart:
        rendered = chart.render({}, name="capture", namespace="capture")
    texts = [text for _, text in sorted(rendered.items()) if text.strip()]
    assert [one for text in texts for one in YAML(typ="safe").load_all(text)] == read(MANIFESTS)


def render(values):
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")
    with helm.Chart.load(str(HELM)) as chart:
        rendered = chart.render(values, name="lake", namespace="lake")
    return [one for text in rendered.values() if text.strip() for one in YAML(typ="safe").load_all(text)]


@pytest.mark.parametrize(
    "values",
    [
        {"secrets": {"keys": "capture-keys"}, "nodeSelector": {"disk": "ssd"}, "replicas": 5},
        {"status": {"enabled": False}, "networkPolicy": {"enabled": False}, "verify": {"enabled": False}},
        {"tolerations": [{"key": "lake", "operator": "Exists"}], "networkPolicy": {"egressPorts": [4222, 9000]}},
    ],
)
def test_the_chart_renders_with_other_values(values):
    assert check_manifests(render(values))


def pods(values):
    """Return the pod and the container of each part of the chart."""
    documents = render(values)
    assert sorted(check_manifests(documents)) == ["run", "serve", "verify"]
    return {container["args"][1]: (pod, container) for _, pod, container in containers(documents)}


def test_each_part_of_the_chart_may_have_an_identity_of_its_own():
    own = {"serviceAccountName": "auditor", "secrets": {"nats": "auditor-nats", "store": ""}}
    found = pods({"serviceAccountName": "capture", "imagePullSecrets": [{"name": "registry"}], "verify": own})
    accounts = {name: pod["serviceAccountName"] for name, (pod, _) in found.items()}
    assert accounts == {"run": "capture", "serve": "capture", "verify": "auditor"}
    for name, (pod, _) in found.items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        nats = "auditor-nats" if name == "verify" else "capture-nats"
        assert secrets == {"nats": nats, "store": "capture-store", "page": "capture-page"}
    assert all("serviceAccountName" not in pod and "imagePullSecrets" not in pod for pod, _ in pods({}).values())


def test_the_chart_needs_no_store_credentials_and_takes_credentials_files_of_nats():
    values = {
        "secrets": {"store": ""},
        "nats": {"creds": "user.creds", "cert": "", "key": ""},
        "extraVolumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
        "extraVolumeMounts": [{"name": "lake", "mountPath": "/lake"}],
    }
    for pod, container in pods(values).values():
        environment = {one["name"]: one.get("value") for one in container["env"]}
        assert environment["NATS_CREDS"] == "/secrets/nats/user.creds"
        assert {"NATS_CERT", "NATS_KEY", "NATS_NKEY"}.isdisjoint(environment)
        assert {"store"}.isdisjoint(one["name"] for one in pod["volumes"])
        assert {"name": "lake", "mountPath": "/lake"} in container["volumeMounts"]
    assert "nkeys" in re.search(r'install "/src\[(.*)\]"', (ROOT / "Dockerfile").read_text())[1].split(",")


@pytest.mark.parametrize("there", [True, False])
def test_the_command_of_the_image_runs_with_the_credentials_of_the_store_if_there_are_some(tmp_path, there):
    text = (ROOT / "assets" / "compose" / "with-store").read_text()
    assert text.count("/secrets/store/s3.env") == 2
    (tmp_path / "with-store").write_text(text.replace("/secrets/store/", f"{tmp_path}/"))
    if there:
        (tmp_path / "s3.env").write_text("AZURE_STORAGE_KEY='a b'\n")
    words = ["sh", tmp_path / "with-store", "sh", "-c", 'echo "${AZURE_STORAGE_KEY-none}"']
    ran = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert ran.stdout == ("a b\n" if there else "none\n")


def test_a_job_that_hangs_is_ended():
    jobs = [one for one in read(MANIFESTS) if one["kind"] == "CronJob"]
    assert all(0 < one["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 24 * 3600 for one in jobs)
    assert jobs


def test_the_version_of_the_chart_is_that_of_the_package():
    (chart,) = read(HELM / "Chart.yaml")
    (values,) = read(HELM / "values.yaml")
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert (chart["appVersion"], values["image"]["tag"]) == (version, version)

"""docker-compose.yml runs without an engine: our images built by the Dockerfile's steps, its services in namespaces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patient import PATIENCE

from natty.testing import find_server

ENGINE = Path(__file__).parents[2] / "support" / "without_engine.py"
ISOLATED = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
IN_OUR_NETWORK = [one for one in ISOLATED if one != "--net"]  # pip downloads while the images are built
TRIAL = """
mount -t tmpfs trial {0} && mkdir {0}/upper {0}/work {0}/root &&
mount -t overlay trial -o lowerdir=/,upperdir={0}/upper,workdir={0}/work {0}/root && ip link add trial type bridge
"""
WITHIN = 10 * PATIENCE  # seconds: a dozen services, five of them with a JVM, start on two busy cores
FETCH = """
import ssl, sys, urllib.request
token = open("/secrets/page/token").read().strip() if sys.argv[2] == "token" else ""
request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {token}"} if token else {})
context = ssl.create_default_context(cafile="/secrets/tls/ca.pem")
try:
    print(urllib.request.urlopen(request, context=context, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    sys.exit(error.code % 256)
"""
KNOCK = """
import socket, sys
for name in sys.argv[1:]:
    host, port = name.split(":")
    with socket.socket() as probe:
        probe.settimeout(20)
        print(name, probe.connect_ex((host, int(port))))
"""
GREET = """
import socket, ssl
context = ssl.create_default_context(cafile="/secrets/tls/ca.pem")
context.set_alpn_protocols(["h2"])
for shown in ("", "none", "client", "server"):
    if shown in ("client", "server"):
        context.load_cert_chain(f"/secrets/tls/{shown}.pem", f"/secrets/tls/{shown}-key.pem")
    with socket.create_connection(("s3", 18333), 20) as link:
        try:
            link = context.wrap_socket(link, server_hostname="s3") if shown else link
            link.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5))
            print("settings" if link.recv(9)[3:4] == b"\\x04" else "end")
        except OSError:
            print("refused")
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


class Stack:
    """The services, run by tests/support/without_engine.py."""

    def __init__(self, folder, log):
        programs = {"nats-server": str(find_server())}
        if prometheus := shutil.which("prometheus"):
            programs["prometheus"] = prometheus
        command = [*IN_OUR_NETWORK, sys.executable, str(ENGINE), str(folder), json.dumps(programs)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )

    def ask(self, name, *arguments):
        """Have the engine do something. AssertionError with its reason if that fails."""
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the engine ended while it carried out {name}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def once(self, name, *command):
        """Run a command in a new container of a service: its status and what it printed."""
        done = self.ask("once", name, command, WITHIN)
        return done["status"], done["out"]

    def fetch(self, url, token="token"):
        return self.once("status", "python", "-c", FETCH, url, token)

    def until(self, condition, what):
        """Wait until a condition holds; at the end of patience show the logs."""
        deadline = time.monotonic() + WITHIN
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {WITHIN:g} s\n{self.ask('ends')}"
            time.sleep(1)
        return found

    def close(self):
        """End the engine; the kernel ends all that it started, and unmounts what it mounted."""
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def refuse_unable_machines(folder):
    """Skip only where the kernel refuses namespaces or overlays, and say so. Everything else is a failure."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("docker-compose.yml was NOT run: without an engine that takes root on Linux")
    tried = subprocess.run([*ISOLATED, "sh", "-c", TRIAL.format(folder)], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"docker-compose.yml was NOT run: this machine allows no namespaces or overlays: {tried.stderr}")


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    refuse_unable_machines(folder)
    with (folder.parent / "engine.log").open("ab") as log:
        running = Stack(folder, log)
    try:
        assert {"node", "s3"} <= set(running.ask("build"))
        running.absent = running.ask("up", WITHIN)
        yield running
    finally:
        running.close()


def test_every_service_starts_in_its_order_and_none_ends_but_those_that_should(stack):
    assert set(stack.absent) <= {"prometheus"}
    assert stack.ask("ended") == {"secrets": 0, "bucket": 0, "streams": 0}


def test_a_container_of_ours_is_not_root_has_no_capability_and_writes_only_to_tmp(stack):
    script = (
        "id -u; grep CapEff /proc/self/status; touch /tmp/one && echo tmp; touch /a || touch /opt/venv/a || echo not"
    )
    status, out = stack.once("status", "sh", "-c", script)
    assert status == 0
    assert "10001\n" in out
    assert "CapEff:\t0000000000000000" in out
    assert "tmp\n" in out
    assert out.endswith("not\n")


def test_a_second_start_keeps_the_secrets(stack):
    status, out = stack.once("secrets")
    assert (status, out.startswith("the secrets exist; the certificates are valid until ")) == (0, True), out


def test_nothing_but_s3_and_the_cluster_of_spark_is_reachable_and_no_rest_server_takes_jobs(stack):
    closed = ["s3:8888", "s3:9333", "s3:8080", "s3:9101", "s3:8181"]
    closed += ["spark-master:6066", "spark-master:8080", "spark-worker:8081"]
    stack.until(lambda: "I have been elected leader" in stack.ask("log", "spark-master"), "the master leads")
    _, out = stack.once("status", "python", "-c", KNOCK, "s3:8333", "spark-master:7077", *closed)
    codes = dict(line.split() for line in out.splitlines())
    assert [codes.pop(one) for one in ("s3:8333", "spark-master:7077")] == ["0", "0"]
    assert "0" not in codes.values(), codes


def test_s3_takes_no_keys_by_grpc_not_even_from_who_has_the_certificates(stack):
    status, out = stack.once("status", "python", "-c", GREET)
    assert status == 0, out
    assert set(out.split()) <= {"refused", "end"}, out
    assert len(out.split()) == 4, out


def test_the_compaction_runs_on_the_cluster_with_its_secret_and_tls(stack):
    stack.until(
        lambda: "Successfully registered with master" in stack.ask("log", "spark-worker"), "the worker registers"
    )
    stack.until(lambda: "; compacted " in status_of(stack), "the first table")
    worker, master = stack.ask("log", "spark-worker"), stack.ask("log", "spark-master")
    assert "Asked to launch executor" in worker
    for log in (worker, master):
        assert "authentication enabled" in log
        assert "RPC SSL enabled" in log
        assert "Running Spark version 4.3" in log
    _, counted = stack.once("cli", "capture", "sql", "SELECT subject, COUNT(*) AS n FROM messages GROUP BY subject")
    assert all(f"orders.{country}" in counted for country in ("de", "fr", "jp", "us")), counted


def test_the_status_page_is_served_to_who_has_the_token(stack):
    status, page = stack.fetch("https://status:8180/status.json")
    assert (status, '"ORDERS"' in page) == (0, True), page
    assert stack.fetch("https://status:8180/status.json", "none")[0] == 401 % 256


def test_every_target_of_prometheus_serves_its_metrics_over_tls_and_with_the_token(stack):
    for target, metric in {
        "capture-1:8190": "capture_",
        "capture-2:8190": "capture_",
        "status:8180": "capture_archive_ok",
    }.items():
        status, text = stack.fetch(f"https://{target}/metrics")
        assert (status, metric in text) == (0, True), (target, text[:500])


def test_prometheus_reads_all_of_them(stack):
    if "prometheus" in stack.absent:
        pytest.skip("prometheus was NOT run: there is none on PATH; its targets were read by another test")

    def up():
        _, text = stack.fetch("https://prometheus:9090/api/v1/query?query=up", "none")
        found = json.loads(text)["data"]["result"]
        return {one["metric"]["instance"] for one in found if one["value"][1] == "1"}

    stack.until(lambda: up() == {"capture-1:8190", "capture-2:8190", "status:8180"}, "all targets are up")


def test_a_killed_leader_is_replaced_and_nothing_is_missing(stack):
    leader = next(name for name in ("capture-1", "capture-2") if f"sweep       {name}" in status_of(stack))
    other = {"capture-1": "capture-2", "capture-2": "capture-1"}[leader]
    stack.ask("stop", leader, WITHIN, signal.SIGKILL)
    stack.until(lambda: f"sweep       {other}" in status_of(stack), f"{other} leads")
    stack.ask("restart", leader)
    assert stack.ask("stop", "publisher", WITHIN) == 0
    assert stack.ask("log", "publisher").endswith("stopped\n")
    last = json.loads(stack.once("cli", "natty", "stream", "info", "ORDERS", "--json")[1])["state"]["last_seq"]
    verified = stack.until(lambda: verify(stack, last), "every message is stored")
    assert "nothing is missing" in verified


def test_at_a_stop_every_service_of_ours_ends_by_itself(stack):
    for name in ("capture-1", "capture-2", "status"):
        assert stack.ask("stop", name, WITHIN) == 0, stack.ask("log", name)


def status_of(stack):
    return stack.once("cli", "capture", "status")[1]


def verify(stack, last):
    """Return what `capture verify` prints once it counts as many messages as the stream has; "" before."""
    status, out = stack.once("cli", "capture", "verify")
    return out if status == 0 and f"{last:,} stored" in out else ""

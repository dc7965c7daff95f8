import asyncio
import dataclasses
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from patient import PATIENCE, PATIENT
from secret import write_secret

from natty import Natty, NattyError
from natty.streams.listing import all_streams
from natty.testing import NatsCluster, NatsServer, ServerOptions, free_ports


@pytest.fixture
def shell(quick_shell):
    return quick_shell


def variables(lines):
    """Return what the lines `export NAME=value` say."""
    words = [shlex.split(line) for line in lines if line.startswith("export ")]
    return dict(word[1].split("=", 1) for word in words)


def greeted(process):
    """Return the lines that a server prints before it is used."""
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("Press Ctrl-C"):
            return lines
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_for_development_serves_and_leaves_nothing_behind(shell, tmp_path, number, processes_of):
    (tmp_path / "temporary").mkdir()
    process = shell.start("natty", "server", "--port", "0", TMPDIR=str(tmp_path / "temporary"))
    lines = greeted(process)
    given = variables(lines)
    assert lines[0] == "Paste these lines into another shell:"
    assert [line.split()[0] for line in lines[1:5]] == ["export"] * 4
    assert set(given) == {"NATS_URL", "NATS_CA", "NATS_CERT", "NATS_KEY"}
    assert Path(given["NATS_KEY"]).stat().st_mode & 0o077 == 0
    made = shell.natty("stream", "ls", "--json", **given)
    assert (made.status, json.loads(made.out)) == (0, [])

    command = next(line for line in lines if line.startswith("natty doctor"))
    found = shell.finish(shell.execute([sys.executable, "-m", *command.split()], **given))
    assert (found.status, found.err) == (0, "")
    assert "required by us, in use" in found.out

    assert processes_of("nats-server", str(tmp_path))
    process.send_signal(number)
    assert shell.finish(process).status == 0
    assert processes_of("nats-server", str(tmp_path)) == {}
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_folder_given_to_the_server_keeps_what_is_stored(shell, tmp_path):
    port = str(free_ports(1)[0])
    for place, command in enumerate([("pub", "s.a", "kept", "-J"), ("sub", "s.a", "--stream", "S", "--count", "1")]):
        process = shell.start("natty", "server", "--port", port, "--store", "kept")
        given = variables(greeted(process))
        assert given["NATS_URL"] == f"tls://127.0.0.1:{port}"
        if place == 0:
            (tmp_path / "streams.toml").write_text('[streams.S]\nsubjects = ["s.>"]')
            assert shell.natty("stream", "apply", "-f", "streams.toml", **given).status == 0
        done = shell.natty(*command, **given)
        process.send_signal(signal.SIGINT)
        assert shell.finish(process).status == 0
    assert "kept" in done.out
    assert (tmp_path / "kept" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / "kept" / "server.log").read_text().count("Server Exiting") == 2  # it had time to write


def test_a_cluster_for_development(shell):
    process = shell.start("natty", "server", "--port", "0", "--cluster", "3")
    given = variables(greeted(process))
    assert given["NATS_URL"].count("tls://") == 3
    (shell.folder / "streams.toml").write_text('[streams.S]\nsubjects = ["s.>"]\nnum_replicas = 3')
    assert shell.natty("stream", "apply", "-f", "streams.toml", **given).status == 0
    deadline = time.monotonic() + PATIENCE
    while (doctor := shell.natty("doctor", **given)).status and time.monotonic() < deadline:
        time.sleep(0.2)  # a node that is slow to answer is told, too
    assert doctor.status == 0, doctor.out
    assert len(re.findall(r"clock: natty-\d is", doctor.out)) == 1
    process.send_signal(signal.SIGINT)
    assert shell.finish(process).status == 0


def test_a_server_that_dies_is_told(shell, processes_of, tmp_path):
    process = shell.start("natty", "server", "--port", "0", TMPDIR=str(tmp_path))
    greeted(process)
    (pid,) = [pid for pid, command in processes_of("nats-server --config", str(tmp_path)).items()]
    os.kill(pid, signal.SIGKILL)
    done = shell.finish(process)
    assert done.status == 1
    assert done.complaint.startswith("natty: natty stopped unexpectedly: ")


def test_a_port_that_is_taken_is_told(shell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = shell.natty("server", "--port", str(port))
    assert done.status == 1
    assert f"port {port} can't be used" in done.complaint
    assert "give another --port, or 0" in done.complaint


def test_a_folder_that_can_not_be_made_is_told(shell):
    done = shell.natty("server", "--port", "0", "--store", "/proc/none/here")
    assert (done.status, done.out) == (1, "")
    assert done.complaint == "natty: /proc/none: No such file or directory"


def test_a_server_program_that_is_missing_is_told(shell):
    done = shell.natty("server", "--port", "0", NATS_SERVER_BIN="nowhere")
    assert (done.status, done.complaint) == (
        1,
        "natty: nowhere is not a program: give the path of nats-server in NATS_SERVER_BIN.",
    )


def test_the_doctor_tells_what_is_wrong_and_fails(shell, natty_ca, natty_tls, tmp_path):
    """On a cluster that lost a node, with a certificate that ends soon and a consumer whose ack_wait can't be meant."""
    soon = natty_ca.issue("soon", days=2)
    cert, key = tmp_path / "soon.pem", tmp_path / "soon-key.pem"
    cert.write_bytes(soon.cert_pem)
    write_secret(key, soon.key_pem)
    with NatsCluster(3, tls_files=natty_tls, folder=tmp_path / "nats") as cluster:

        async def prepare():
            async with Natty(**cluster.connect_options(), **PATIENT) as natty:
                await natty.ensure_stream("S", subjects=["s"], num_replicas=3)
                await natty.ensure_consumer("S", "hasty", ack_wait=0.5)
                follower = (await natty.jetstream.request("STREAM.INFO.S"))["cluster"]["replicas"][0]["name"]
                next(server for server in cluster if server.name == follower).kill()
                async with asyncio.timeout(PATIENCE):
                    while not await is_seen_as_lost(natty):
                        await asyncio.sleep(0.2)
                return follower, ",".join(server.url for server in cluster if server.alive)

        async def is_seen_as_lost(natty):
            """Tell whether the cluster has noticed, and answers everything again."""
            try:
                (stream,) = (await all_streams(natty.jetstream)).found
                await natty.jetstream.request("INFO")
                await natty.jetstream.request("CONSUMER.INFO.S.hasty")
            except (NattyError, ValueError):
                return False
            return any(one.get("offline") or one["active"] > 6 * 10**9 for one in stream["cluster"]["replicas"])

        follower, urls = asyncio.run(prepare())
        told = shell.natty("doctor", "--json", NATS_URL=urls, NATS_CERT=str(cert), NATS_KEY=str(key))
        lines = shell.natty("doctor", NATS_URL=urls, NATS_CERT=str(cert), NATS_KEY=str(key))
    assert (told.status, lines.status) == (1, 1)
    findings = {one["text"]: one["status"] for one in json.loads(told.out)["checks"]}
    (lost,) = [text for text in findings if text.startswith(f"stream S has lost its replica on {follower}, silent for")]
    assert findings[lost] == "fail"
    assert f"fail  replicas: stream S has lost its replica on {follower}" in lines.out
    hasty = (
        "consumer hasty of stream S waits 0.5 s for an ack: slower handlers get their messages twice; raise ack_wait"
    )
    assert findings[hasty] == "warn"
    (ours,) = [text for text in findings if text.startswith(f"the client certificate {cert} expires on")]
    assert findings[ours] == "warn"
    (server,) = [text for text in findings if text.startswith("the server's certificate expires on")]
    assert findings[server] == "ok"
    assert any(text.endswith("supports everything that natty uses") for text in findings)


def test_the_doctor_reads_the_certificate_that_the_server_shows(shell, natty_ca, natty_tls, tmp_path):
    ends_soon = natty_ca.issue("server", days=1)
    cert, key = tmp_path / "server.pem", tmp_path / "server-key.pem"
    cert.write_bytes(ends_soon.cert_pem)
    write_secret(key, ends_soon.key_pem)
    files = dataclasses.replace(natty_tls, server_cert=cert, server_key=key)
    with NatsServer(ServerOptions(), tls_files=files, folder=tmp_path / "nats") as server:
        told = shell.natty("doctor", "--json", "--server", server.url)
    assert told.status == 0
    (finding,) = [one for one in json.loads(told.out)["checks"] if one["text"].startswith("the server's")]
    assert finding["status"] == "warn"
    assert "renew it" in finding["text"]

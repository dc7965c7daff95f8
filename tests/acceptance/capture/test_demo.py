import contextlib
import json
import signal
import socket
import time

import pytest
from patient import PATIENCE

ROWS = 3000


@contextlib.contextmanager
def taken(*ports):
    """Hold the usual ports of a NATS server; where somebody else does, that serves as well."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            holder = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                holder.bind(("127.0.0.1", port))
                holder.listen()
        yield


def gone(processes_of, folder, within=PATIENCE):
    """Return the processes that have to do with a folder, once there are none or the time is over."""
    deadline = time.monotonic() + within
    while (left := processes_of(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_proves_what_it_promises_and_leaves_nothing_running(shell, tmp_path, processes_of):
    folder = tmp_path / "a b" / "demo"
    with taken(4222, 8222):
        done = shell.capture("demo", "--rows", ROWS, "--folder", folder, "--json", within=10 * PATIENCE)
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result["ok"]
    assert result["verified"]
    assert result["answers_equal"]
    assert result["differences"] == []
    assert result["messages"] == ROWS
    assert result["failover_seconds"] > 0
    assert {result["killed"], result["successor"]} == {"node-1", "node-2"}
    assert "nothing is missing" in result["verdict"]
    assert result["files"] >= 3  # one an airport
    assert result["tables_equal"]
    assert result["table_differences"] == []
    assert result["tables"]["tails"] > result["tables"]["delays"] > 0
    assert {result["pipelines_killed"], result["pipelines_successor"]} == {"node-1", "node-2"}
    assert "in the middle of a run" in " ".join(done.err.split())
    assert result["plain_text"] in ("-ERR 'Secure Connection - TLS Required'", "the server closed the connection")
    assert gone(processes_of, folder) == {}
    assert gone(processes_of, shell.folder) == {}
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == [".gitignore", "archive", "capture.toml", "logs", "nats", "tls"]
    verified = shell.capture("verify", "--offline", "--config", folder / "capture.toml")
    assert verified.status == 0
    assert verified.out.startswith("3,000 stored; nothing is missing; compared with the recording of 20")
    listed = shell.capture("pipeline", "ls", "--offline", "--json", "--config", folder / "capture.toml")
    assert {one["name"]: one["rows"] for one in json.loads(listed.out)} == result["tables"]
    again = shell.capture("demo", "--rows", "10", "--folder", folder)
    assert again.status == 1
    assert f"capture: {folder} is not empty: give another --folder, or remove it first" in again.complaint


MOMENTS = {
    "while the cluster starts": lambda folder: any(folder.glob("*/nats/*/server.log")),
    "while it captures": lambda folder: any(folder.glob("*/archive/blocks/**/*.parquet")),
    "while Spark runs": lambda folder: any(folder.glob("*/archive/table")) or any(folder.glob("*/logs/spark-*.log")),
}


@pytest.mark.spark
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_leaves_no_process_and_no_file(shell, tmp_path, processes_of, moment):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    demo = shell.start("capture", "demo", "--rows", "20000", TMPDIR=str(scratch))
    deadline = time.monotonic() + 2 * PATIENCE
    while not MOMENTS[moment](scratch):
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    done = shell.finish(demo)
    assert done.status == 130
    assert done.complaint == "capture: interrupted"
    assert gone(processes_of, scratch) == {}
    assert list(scratch.iterdir()) == []

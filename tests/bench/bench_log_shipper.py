"""The log shipper, from file to file over mutual TLS: `python tests/bench/bench_log_shipper.py [lines]`.

Two processes, `shipper produce` and `shipper consume`, beside the server. First an existing file (default: 100 000
lines of 128 bytes): lines per second from the first line written to the last one on disk, each batch acknowledged
before the next. Then a file that grows at 5 000 lines per second: the time from writing a line until it is in the
host's file. Busy machines distort both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_table import print_machine

from natty.testing import NatsServer

ROOT = Path(__file__).parents[2]
LINES = 100_000
GOAL = 20_000  # lines a second, on a quiet machine of two cores
RATE = 5_000  # lines a second that the file grows
GROW_FOR = 10.0  # seconds
DELAY_GOAL = 0.2  # seconds at the 99th percentile
PATIENCE = 120.0
LINE = b"%010d " + b"x" * 116 + b"\n"


class Shipper:
    """A producer and a consumer of one log, as processes."""

    def __init__(self, server: NatsServer, folder: Path, name: str) -> None:
        options = server.connect_options()
        self.log, self.out = folder / f"{name}.log", folder / name / "bench"
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")]),
            "NATS_URL": ",".join(options["servers"]),
            "NATS_CA": options["tls_ca"],
            "NATS_CERT": options["tls_cert"],
            "NATS_KEY": options["tls_key"],
            "HOSTNAME": "bench",
            "SHIPPER_SUBJECT": name,
            "SHIPPER_FILE": str(self.log),
            "SHIPPER_DIRECTORY": str(folder / name),
            "SHIPPER_OUTPUT": "log",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.cpu: dict[str, float] = {}

    def start(self, program: str) -> None:
        command = [sys.executable, "-m", "log_shipper", program]
        self._processes[program] = subprocess.Popen(
            command, env=self._environment, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )

    def received(self) -> int:
        """Return how many bytes are on disk."""
        return sum(path.stat().st_size for path in self.out.glob("*"))

    def stop(self) -> None:
        """Stop both; note what CPU they took, start included."""
        for program, process in self._processes.items():
            user, system = Path(f"/proc/{process.pid}/stat").read_text().split()[13:15]
            self.cpu[program] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            assert process.wait(PATIENCE) == 0


def a_file_that_is_there(server: NatsServer, folder: Path, lines: int) -> None:
    shipper = Shipper(server, folder, "there")
    shipper.log.write_bytes(b"")
    for program in ("consume", "produce"):
        shipper.start(program)
    with shipper.log.open("ab") as log:
        log.write(LINE % 0)
    wait_for(shipper, len(LINE % 0))
    began = time.perf_counter()
    with shipper.log.open("ab") as log:
        log.write(b"".join(LINE % number for number in range(lines)))
    wait_for(shipper, (lines + 1) * len(LINE % 0))
    took = time.perf_counter() - began
    shipper.stop()
    assert b"".join(path.read_bytes() for path in shipper.out.glob("*")) == shipper.log.read_bytes()
    cpu = ", ".join(f"{name} {seconds / lines * 1e6:.1f}" for name, seconds in shipper.cpu.items())
    print(
        f"a file of {lines} lines: {lines / took:,.0f} lines/s from file to file (goal: {GOAL:,}); CPU µs/line: {cpu}"
    )


def a_file_that_grows(server: NatsServer, folder: Path) -> None:
    shipper = Shipper(server, folder, "grows")
    shipper.log.write_bytes(b"")
    for program in ("consume", "produce"):
        shipper.start(program)
    with shipper.log.open("ab", buffering=0) as log:
        log.write(LINE % 0)
        wait_for(shipper, len(LINE % 0))
        delays, written, began = grow(shipper, log.write)
    wait_for(shipper, (written + 1) * len(LINE % 0))
    shipper.stop()
    delays.sort()
    middle, late = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
    rate = written / (time.perf_counter() - began)
    print(
        f"a file that grows at {RATE:,} lines/s ({written} written, {rate:,.0f}/s to the end): on disk after"
        f" {middle * 1000:.0f} ms, median; {late * 1000:.0f} ms, 99th percentile (goal: {DELAY_GOAL * 1000:.0f})"
    )


def grow(shipper: Shipper, write: Callable[[bytes], object]) -> tuple[list[float], int, float]:
    """Write at `RATE`, and look after each write what has arrived; return each line's delay."""
    began, size = time.perf_counter(), len(LINE % 0)
    written_at: list[float] = []
    delays: list[float] = []
    while (now := time.perf_counter() - began) < GROW_FOR or len(delays) < len(written_at):
        due = int(min(now, GROW_FOR) * RATE) - len(written_at)
        if due > 0:
            write(b"".join(LINE % number for number in range(due)))
            written_at += [time.perf_counter()] * due
        arrived, at = shipper.received() // size - 1, time.perf_counter()
        delays += [at - moment for moment in written_at[len(delays) : arrived]]
        time.sleep(0.002)
    return delays, len(written_at), began


def wait_for(shipper: Shipper, size: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while shipper.received() < size:
        assert time.monotonic() < deadline, "the lines did not arrive"
        time.sleep(0.005)


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else LINES
    print_machine()
    with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
        a_file_that_is_there(server, Path(folder), lines)
        a_file_that_grows(server, Path(folder))


if __name__ == "__main__":
    main()

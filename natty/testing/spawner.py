"""Starts child processes that die with their parent, and reserves ports that no other process takes."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

# Below the range from which Linux takes the local ports of outgoing connections (32768 and up, 16000 on some machines):
# a connection can't take the port of a server that is down for a moment, and a client can't connect to itself.
PORTS = range(10_000, 16_000)
BLOCK = 50  # ports that a process reserves at once

_giving_out = threading.Lock()
_ours: list[int] = []  # reserved and not returned yet

# Runs in the child, then becomes the program by exec: the kernel kills it when its parent dies, for any reason.
# Not a preexec_fn: running Python between fork and exec is unsafe (and warned about) in a process with threads.
_TRAMPOLINE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died meanwhile")
os.execv(sys.argv[2], sys.argv[2:])
"""

# The kernel reacts to the death of the parent *thread*. So this thread, which lives as long as the process, starts all
# children of other threads than the main one.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="natty-testing-spawner")


def spawn(command: list[str], *, output: IO[bytes], folder: Path, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start `command` in its own session with both outputs in `output`; on Linux it dies with this process."""

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            _bind_to_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )

    if threading.current_thread() is threading.main_thread():
        return start()
    return _spawner.submit(start).result()


def _bind_to_parent(command: list[str]) -> list[str]:
    if sys.platform != "linux" or not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *command]


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of the loopback that are free and reserved for this process.

    On Linux the reservation lasts as long as this process: no other process, and no later call, gets these ports here.
    So a server that starts slowly, or is down for a moment, finds its port free. OSError if none is free.
    """
    free: list[int] = []
    with _giving_out:
        for _ in PORTS:
            if len(free) == count:
                return free
            if not _ours:
                _ours.extend(_reserve())
            if _is_free(port := _ours.pop()):
                free.append(port)
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free on the loopback")


def _reserve() -> list[int]:
    """Return a block of ports, in random order, that no other process has reserved; all ports when none is left."""
    blocks = range(PORTS.start, PORTS.stop, BLOCK) if sys.platform == "linux" else ()
    for first in random.sample(blocks, len(blocks)):
        # A name without a file: visible in the whole network namespace, like ports, and freed with the process.
        with socket.socket(socket.AF_UNIX) as mark, contextlib.suppress(OSError):
            mark.bind(f"\0natty-testing-ports-{first}")
            mark.detach()
            return random.sample(range(first, first + BLOCK), BLOCK)
    return random.sample(PORTS, len(PORTS))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

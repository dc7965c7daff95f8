"""A child process that dies with its parent, and ports that nobody else takes."""

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
# the port of a server that is down for a moment can't be taken by a connection, and a client can't connect to itself.
PORTS = range(10_000, 16_000)

# Runs in the child, then becomes the program by exec: the kernel kills it when its parent dies, however that happens.
# Not a preexec_fn: running Python between fork and exec is unsafe (and warned about) in a process with threads.
_TRAMPOLINE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died meanwhile")
os.execv(sys.argv[2], sys.argv[2:])
"""

# The kernel means the death of the parent *thread*. Children of other threads than the main one are started by this
# one, which lives as long as the process.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="natty-testing-spawner")


def spawn(command: list[str], *, output: IO[bytes], folder: Path, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start `command` in a session of its own with both outputs in `output`; on Linux it dies with this process."""

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            _dying_with_parent(command),
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


def _dying_with_parent(command: list[str]) -> list[str]:
    if sys.platform != "linux" or not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *command]


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of the loopback that are free now and stay out of everybody's way."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(free) == count:
            break
        if _is_free(port):
            free.append(port)
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

"""The guard: a process that runs a program and kills it, with all its children, in time. Standard library only.

`process.py` starts it:

    python -I -S guard.py <file descriptor> <command> [argument …]

The guard reads pairs of times from the descriptor: when to send SIGTERM, and when SIGKILL. Each pair replaces the one
before. The end of the descriptor means that our parent is dead: the guard sends SIGKILL at once. It passes signals on
and exits with the program's exit status.

The program has its own process group, which gets the signals. If there is a /proc, the guard kills its whole session:
also children in groups of their own, such as pyspark's workers.
"""

import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PAIR = struct.Struct("=dd")
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1
NOT_FOUND, NOT_RUNNABLE = 127, 126  # the exit statuses of a shell
KILL_INTERVAL = 0.01  # seconds between two looks for killed processes: we get no signal, they are not our children


def clock() -> float:
    """Return the seconds of the clock `natty.config.units.clock`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def main(descriptor: int, command: list[str]) -> int:
    """Run the command and return the status to exit with, negative for a signal."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until we can pass them on

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        _die_with_guard()

    try:
        program = subprocess.Popen(command, process_group=0, preexec_fn=prepare, close_fds=True)
    except FileNotFoundError:
        return _refuse(f"there is no program {command[0]}", NOT_FOUND)
    except OSError as error:
        return _refuse(f"{command[0]} can't be run: {error.strerror}", NOT_RUNNABLE)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: _send(program, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    term_at = kill_at = float("inf")
    stop_sent, watched = False, [descriptor, woken]
    while program.poll() is None:
        wait = max(0.0, min(term_at, kill_at) - clock())
        ready, _, _ = select.select(watched, [], [], None if wait == float("inf") else wait)
        if woken in ready:
            os.read(woken, 4096)
        if descriptor in ready:
            brought = os.read(descriptor, 256 * PAIR.size)
            if not brought:
                watched.remove(descriptor)
                kill_at = 0.0
            else:
                term_at, kill_at = PAIR.unpack(brought[-PAIR.size :])
        if clock() >= kill_at:
            _send(program, signal.SIGKILL)
            kill_at = term_at = float("inf")
        elif clock() >= term_at:
            if not stop_sent:
                _send(program, signal.SIGTERM)
            stop_sent, term_at = True, float("inf")
    _send(program, signal.SIGKILL)  # the children that it left, if there is no /proc
    while kill(os.getpid()):
        time.sleep(KILL_INTERVAL)
    return program.returncode


def members(session: int) -> list[int]:
    """Return the living processes of a session except its leader, the guard; an empty list if there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process ended meanwhile
            state, _parent, _group, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and int(folder.name) != session and state not in "ZX":
                found.append(int(folder.name))
    return found


def kill(session: int) -> bool:
    """Send SIGKILL to every process of the session except its leader; return whether there was one."""
    found = members(session)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return bool(found)


def _die_with_guard() -> None:
    with suppress(OSError, AttributeError):  # not on Linux: there the group survives if the guard is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _send(program: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


def _refuse(text: str, status: int) -> int:
    with suppress(OSError):  # a full disk
        print(text, file=sys.stderr)
    return status


if __name__ == "__main__":
    returncode = main(int(sys.argv[1]), sys.argv[2:])
    if returncode < 0:  # end like the program, by the same signal
        signal.signal(-returncode, signal.SIG_DFL) if -returncode != signal.SIGKILL else None
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)

"""The processes of Spark on this machine. Any of them may end while a test looks: Spark ends idle Python workers."""

import os
from contextlib import suppress
from pathlib import Path

from natty.elections.guard import members


def read_of_each(session, name):
    """Return the bytes of /proc/<process>/`name` of each process of a session, by its process id."""
    found = {}
    for process in members(session):
        with suppress(FileNotFoundError, ProcessLookupError):
            found[process] = Path(f"/proc/{process}/{name}").read_bytes()
    return found


def send(processes, number):
    """Send a signal to those of the processes that live."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)

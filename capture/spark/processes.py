import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def members(session: int) -> list[int]:
    """The living processes of a session; empty where there is no /proc.

    A session rather than a process group: pyspark's worker daemon makes a group of its own.
    """
    found = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state, _parent, _group, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(folder.name))
    return found


def kill(session: int) -> bool:
    """Send SIGKILL to every process of the session; True if there was one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    found = members(session)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return bool(found)

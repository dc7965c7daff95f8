"""What strikes the pipelines: kills of processes at each phase of a run, a stopped leader, no server, no disk."""

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

from pipeline_nodes import leader_of

from natty import NattyError

KINDS = {"leader": 30, "jvm": 14, "worker": 8, "driver": 6, "stop": 14, "server": 12, "full": 8, "unwritable": 8}
"""Strikes, by their weights."""
PHASES = ("start", "now", "files", "iceberg", "document", "committed", "announced")
"""Moments of a run: Spark is starting; any; a file came; metadata came; a document came; about to commit, or after."""
FOLDERS = {
    "files": ("table",),
    "iceberg": ("table", "iceberg"),
    "document": ("table", "_pipeline"),  # of a run: a term begins with a document, too
    "committed": ("table", "_pipeline"),
    "announced": ("table", "_pipeline"),
}
"""What changes in this order until a phase is reached."""
WITHIN = 45.0  # seconds until a strike does not wait for its phase any longer


def schedule(count, seed):
    """Return the strikes as (kind, phase), mixed: each kind by its weight, each phase as often as the others."""
    dice = random.Random(seed)
    kinds = list(KINDS)[:count]  # each at least once
    kinds += dice.choices(list(KINDS), list(KINDS.values()), k=count - len(kinds))
    phases = [PHASES[number % len(PHASES)] for number in range(count)]
    dice.shuffle(kinds)
    dice.shuffle(phases)
    return list(zip(kinds, phases, strict=True))


class Faults:
    """Plays strikes on nodes (`name: Node`), their server and their store."""

    def __init__(self, natty, nodes, server, store, lease):
        self.natty, self.nodes, self.server, self.lease = natty, nodes, server, lease
        self.home = Path(f"{store}/_pipelines")
        self.seen = {}  # processes of Spark, with the times of their starts

    async def play(self, kind, phase, dice):
        """Wait for the phase of the leader, strike, repair; return what was done, in words."""
        leader = await self._find_leader()
        if not (came := await self._until(phase, dice)):
            leader = await self._find_leader()
        below = _descendants(leader.process.pid)
        self.seen |= {pid: began for pid in below if (began := _started(pid))}
        done = await getattr(self, f"_{kind}")(leader, below, dice)
        return f"{kind} of {leader.name} at {phase}{'' if came else ' (which did not come)'}{done or ''}"

    async def _find_leader(self):
        while True:
            with contextlib.suppress(NattyError, TimeoutError):
                leader = self.nodes[await leader_of(self.natty)]
                if leader.lives:
                    return leader
            await asyncio.sleep(0.2)

    async def _until(self, phase, dice):
        if phase in ("start", "now"):
            await asyncio.sleep(dice.uniform(0.0, 3.0 if phase == "start" else 1.0))
            return True
        end = time.monotonic() + WITHIN
        for folder in FOLDERS[phase]:
            known = _times(self.home / folder)
            while _times(self.home / folder) == known:
                if time.monotonic() > end:
                    return False
                await asyncio.sleep(0.003)
        waits = {"committed": dice.uniform(0.0, 0.02), "announced": dice.uniform(0.02, 0.1)}
        await asyncio.sleep(waits.get(phase, 0.0))
        return True

    # Processes.

    async def _leader(self, leader, below, dice):
        leader.kill()

    async def _jvm(self, leader, below, dice):
        return _kill([pid for pid in below if _command(pid).endswith("java")], dice)

    async def _worker(self, leader, below, dice):
        return _kill([pid for pid in below if "pyspark.daemon" in _command(pid, whole=True)], dice)

    async def _driver(self, leader, below, dice):
        return _kill([pid for pid in below if "capture/spark/" in _command(pid, whole=True)], dice)

    async def _stop(self, leader, below, dice):
        """Stop the leader for longer than its lease, alone or with all of Spark."""
        struck = [leader.process.pid, *(below if dice.random() < 0.5 else ())]
        _signal(struck, signal.SIGSTOP)
        seconds = self.lease + dice.uniform(0.5, 4.0)
        await asyncio.sleep(seconds)
        _signal(struck, signal.SIGCONT)
        return f" for {seconds:.1f} s, {'alone' if len(struck) == 1 else 'with Spark'}"

    # The server and the disk.

    async def _server(self, leader, below, dice):
        await asyncio.to_thread(self.server.kill)
        seconds = dice.uniform(0.0, 2 * self.lease)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.server.start)
        return f" for {seconds:.1f} s"

    async def _full(self, leader, below, dice):
        """No process of the leader can write more than some bytes to a file."""
        most, seconds = dice.choice((0, 600, 3000)), dice.uniform(0.5, 3.0)
        struck = [leader.process.pid, *below]
        _limit(struck, most)
        await asyncio.sleep(seconds)
        _limit([*struck, *_descendants(leader.process.pid)], None)
        return f" for {seconds:.1f} s, {most} bytes"

    async def _unwritable(self, leader, below, dice):
        """No object can be added to a folder of the store."""
        what, seconds = dice.choice(("table", "iceberg", "_pipeline")), dice.uniform(0.5, 3.0)
        folders = _folders(self.home / what)
        try:
            _protect(folders, on=True)
            await asyncio.sleep(seconds)
        finally:
            _protect(folders, on=False)
        return f" for {seconds:.1f} s, {what}"

    def find_survivors(self):
        """Return the processes of Spark that were seen and still run, when all nodes have ended."""
        return [pid for pid, began in self.seen.items() if _started(pid) == began]


def _times(folder):
    """Return when the folder, and each folder below it, got or lost an object."""
    found = {}
    for one in _folders(folder):
        with contextlib.suppress(FileNotFoundError):
            found[one] = one.stat().st_mtime_ns
    return found


def _folders(folder):
    """Return the folder with those below it, without the folders of single runs."""
    found = [folder]
    with contextlib.suppress(FileNotFoundError):
        found += [Path(one.path) for one in os.scandir(folder) if one.is_dir()]
        for one in found[1:]:
            if folder.name == "iceberg":
                found += [Path(each.path) for each in os.scandir(one) if each.is_dir()]
    return found


def _protect(folders, *, on):
    """Make folders unwritable, also for root; or writable again."""
    for one in folders:
        if os.getuid():
            with contextlib.suppress(FileNotFoundError):
                one.chmod(0o500 if on else 0o700)
        else:
            subprocess.run(["chattr", "+i" if on else "-i", str(one)], check=False, capture_output=True)


def _started(pid):
    """Return when a process was started, in the kernel's ticks; None if it has ended."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if state[0] in "ZX" else int(state[19])
    return None


def _descendants(pid):
    """Return the processes below a process."""
    children = {}
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((one / "stat").read_text().rpartition(") ")[2].split()[1])
                children.setdefault(parent, []).append(int(one.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _command(pid, *, whole=False):
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words) if whole else words[0]
    return ""


def _kill(pids, dice):
    """Kill one of the processes; say so if there was none."""
    if not pids:
        return ", none ran"
    _signal([dice.choice(pids)], signal.SIGKILL)
    return ""


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _limit(pids, most):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most is None else most, hard))

"""Hosts with growing logs for tests of the log shipper; as a program, many shippers in one process.

`log_shipping.py HOST…` ships `<working folder>/in/<host>/app.log` of each host, with settings from the environment.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from log_shipper.produce import produce
from log_shipper.settings import ProduceSettings, Route

from natty import Natty


class Host:
    """A host's log: the lines written to it, and the file, which is rotated as a program's log is."""

    def __init__(self, folder, name):
        self.name, self.folder = name, folder
        self.file = folder / "in" / name / "app.log"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()
        self.written = b""
        self.rotations = 0

    def append(self, lines):
        """Write this many lines."""
        first = self.written.count(b"\n")
        text = b"".join(b"%s line %d of the log\n" % (self.name.encode(), first + n) for n in range(lines))
        with self.file.open("ab") as file:
            file.write(text)
        self.written += text

    def rotate(self):
        """Rename the file and start a new one."""
        self.rotations += 1
        self.file.rename(self.file.with_name(f"app.log.{self.rotations}"))
        self.file.touch()

    def received(self, directory="out"):
        """Return the output for this host, of all days together."""
        return b"".join(path.read_bytes() for path in sorted((self.folder / directory / self.name).glob("*")))


async def ship(hosts):
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    route = Route.read(os.environ)
    async with Natty() as natty, asyncio.TaskGroup() as group:
        for host in hosts:
            settings = ProduceSettings(route=route, file=Path.cwd() / "in" / host / "app.log", host=host)
            group.create_task(produce(natty, settings, stopping))


if __name__ == "__main__":
    asyncio.run(ship(sys.argv[1:]))

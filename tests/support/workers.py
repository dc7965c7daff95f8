"""`capture run --workers` as processes: the supervisor's pages, and its children."""

import asyncio
import json
import os
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from patient import PATIENCE
from prometheus_client.parser import text_string_to_metric_families

from natty.testing.spawner import free_ports


class Workers:
    """A supervisor and its workers, started as a node of the test's fleet."""

    def __init__(self, fleet, config, workers, *, node="node", options=(), script=None):
        self.fleet, self.node = fleet, node
        (self.port,) = free_ports(1)
        served = ["--workers", str(workers), "--metrics", f"127.0.0.1:{self.port}", *options]
        if script is None:
            self.process = fleet.start(node, config, options=served)
        else:
            command = ["run", "--config", str(config), "--node-name", node, *served]
            self.process = fleet.start(node, config, script=script, arguments=command)

    @property
    def log(self):
        """The log of all, with a worker's name in front of its lines."""
        return self.fleet.log(self.node).read_text()

    def fetch(self, path):
        """Return (status, body); (0, "") while nobody listens."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (URLError, ConnectionError):
            return 0, ""

    def figures(self, name):
        """Return a metric by its labels' values, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(one.labels.items())): one.value
            for family in text_string_to_metric_families(self.fetch("/metrics")[1])
            for one in family.samples
            if one.name == name
        }

    def stored(self):
        """Return the messages that each worker has stored since it began, by its number."""
        return {number: int(count) for (_, number), count in self.figures("capture_messages_total").items()}

    def pids(self):
        """Return the processes of the workers, in the order in which they began."""
        return [pid for pid, parent in sorted(parents().items()) if parent == self.process.pid]

    async def until(self, condition):
        """Wait until a condition holds, and return its value; show the log if it never does."""
        try:
            async with asyncio.timeout(2 * PATIENCE):
                while not (found := await asyncio.to_thread(condition)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.fetch('/readyz')}\n{self.log}") from None
        return found

    async def until_ready(self):
        """Wait until every worker captures."""
        await self.until(lambda: self.fetch("/readyz")[0] == 200)

    def reasons(self):
        """Return why not all workers are ready."""
        return json.loads(self.fetch("/readyz")[1] or '{"reasons": []}')["reasons"]


def parents():
    """Return the parent of each process that runs; not of those that have ended and wait for their parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            found[int(folder.name)] = int(parent)
    return found


def alive(pids):
    """Return those of these processes that still run."""
    return sorted({*pids} & parents().keys() - {os.getpid()})

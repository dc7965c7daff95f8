"""The supervisor of several workers: starts them, starts them again, and is the one place for signals and reloads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from capture.config.reload import check_reload
from capture.config.settings import CaptureConfig
from capture.config.workers import name_worker
from capture.errors import CaptureError
from capture.node.shutdown import STOPS, reloading
from capture.node.worker_process import WorkerProcess, write_lines
from capture.node.worker_reports import Ended, Family, Restarts, is_final
from capture.stores.own_store import shown
from natty import NattyError
from natty.config.units import write_count
from natty.wire.background import wait_until_set

LEAVE_WITHIN = 20.0  # seconds that a worker has to end after the deadline of its drain
FIGURES_WITHIN = 2.0  # seconds that a worker has to report its metrics

log = logging.getLogger("capture.workers")
life = logging.getLogger("capture.run")


class Supervisor:
    """The workers of one `capture run`. Each is a process that captures as a node; a worker that ends starts again.

    All workers end when this process ends, however it does: each stops when its line to the supervisor is closed.
    """

    def __init__(
        self,
        config: CaptureConfig,
        count: int,
        command: Sequence[str],
        *,
        load: Callable[[], CaptureConfig],
        on_reload: Callable[[CaptureConfig], None],
        ends: bool = False,
    ) -> None:
        """`command` starts a worker. `load` and `on_reload` are as for `Node`.

        With `ends`, a worker that ends without an error has done its work, and does not start again.
        """
        self._ends = ends
        self.config = config
        self.names = {number: name_worker(config, number) for number in range(1, count + 1)}
        self.running: dict[int, WorkerProcess] = {}
        self.restarts = Counter(dict.fromkeys(self.names, 0))
        self.stored: Counter[str] = Counter()  # messages and blocks, of workers that have ended
        self._command = command
        self._load, self._on_reload = load, on_reload
        self._waits = dict.fromkeys(self.names, "it starts")  # why a worker does not run
        self._stopping = asyncio.Event()
        self._final = ""  # the error that ended all workers
        self._failures: list[str] = []  # of workers at the stop

    def __repr__(self) -> str:
        return f"Supervisor({len(self.running)} of {len(self.names)} workers run)"

    async def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT, then let them store what they have read.

        A second signal kills them and ends this process at once. Raises CaptureError if no worker could begin, or if a
        worker could not store all that it had read.
        """
        life.info("%s", self._describe_start(), extra={"action": "workers"})
        with self._obeying_signals(), reloading(self.reload):
            async with asyncio.TaskGroup() as tasks:
                for number in self.names:
                    tasks.create_task(self._keep(number))
        stored = write_count(self.stored["messages"], "message"), write_count(self.stored["blocks"], "block")
        life.info("%d workers stopped: %s in %s stored", len(self.names), *stored, extra={"action": "workers"})
        if failure := self._final or "; ".join(self._failures):
            raise CaptureError(failure)

    def _describe_start(self) -> str:
        streams, workers = ", ".join(self.config.streams) or self.config.stream, ", ".join(self.names.values())
        return f"{len(self.names)} workers capture {streams} into {shown(self.config.store)}: {workers}"

    def stop(self) -> None:
        """Stop as at SIGTERM. Idempotent."""
        if not self._stopping.is_set():
            self._stopping.set()
            for worker in self.running.values():
                worker.stop(self.config.drain + LEAVE_WITHIN)

    def reload(self) -> None:
        """Check the configuration once, then let every worker read it. An invalid configuration changes nothing."""
        try:
            change = check_reload(self.config, self._load())
        except (CaptureError, NattyError) as error:
            log.error("nothing was reloaded, the old configuration stays: %s", error, extra={"action": "reload"})
            return
        self.config = change.config
        self._on_reload(change.config)
        for worker in self.running.values():
            worker.reload()

    def not_ready(self) -> list[str]:
        """Return why not every worker captures now, in sentences."""
        return [
            f"{name}: {reason}"
            for number, name in self.names.items()
            for reason in (self.running[number].describe_trouble() if number in self.running else [self._waits[number]])
        ]

    async def read_figures(self) -> dict[int, list[Family]]:
        """Return the metrics of each worker, by its number, without those that do not answer in FIGURES_WITHIN."""
        numbers = list(self.running)
        asked = [asyncio.wait_for(self.running[number].read_figures(), FIGURES_WITHIN) for number in numbers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {number: one for number, one in zip(numbers, answers, strict=True) if not isinstance(one, BaseException)}

    async def _keep(self, number: int) -> None:
        """Run a worker until the stop, again and again."""
        name, restarts = self.names[number], Restarts()
        while not self._stopping.is_set():
            ended = await self._run_once(number)
            if self._ends and ended.status == 0:
                return
            if self._stopping.is_set():
                self._note_end(name, ended)
                return
            others = any(worker.captured for worker in self.running.values())
            if is_final(ended, others_captured=others, stop_on_failure=self.config.on_store_failure == "stop"):
                self._final = ended.failure or f"{name} {ended}"
                self.stop()
                return
            pause = restarts.pause_after(ended.ran)
            self._waits[number] = f"it {ended}, and starts again after {pause:g} s"
            text = "worker %s %s; it starts again in %g s"
            log.error(text, name, ended, pause, extra={"action": "worker_ended", "worker": name})
            await wait_until_set(self._stopping, pause)
            self.restarts[number] += 1

    def _note_end(self, name: str, ended: Ended) -> None:
        """Keep why a worker did not stop well, for the exit status; log it if that has another reason."""
        if ended.status in (0, -signal.SIGTERM):  # SIGTERM: it had not begun
            return
        self._failures.append(f"{name} {ended}")
        if self._final and ended.failure != self._final:
            log.error("worker %s %s", name, ended, extra={"action": "worker_ended", "worker": name})

    async def _run_once(self, number: int) -> Ended:
        """Run a worker to its end."""
        name, count = self.names[number], len(self.names)
        relay = partial(write_lines, name)
        try:
            worker = await WorkerProcess.start(self._command, name, number=number, count=count, relay=relay)
        except OSError as error:
            return Ended(0, because=f"could not be started: {error}")
        self.running[number] = worker
        if self._stopping.is_set():
            worker.stop(self.config.drain + LEAVE_WITHIN)
        try:
            return await worker.wait()
        finally:
            self.stored += worker.stored
            del self.running[number]

    @contextlib.contextmanager
    def _obeying_signals(self) -> Iterator[None]:
        """While the body runs, the first SIGTERM or SIGINT stops the workers, and the second one ends all at once."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in STOPS}
        for number in STOPS:
            loop.add_signal_handler(number, self._obey, number)
        try:
            yield
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def _obey(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            for worker in self.running.values():
                worker.kill()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.stop()

"""Several streams in one process, over one connection: a node for each, and an archive for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from capture.config.reload import plan_reload
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.errors import CaptureError
from capture.ingest.startup import Start
from capture.node.node import Node
from capture.node.pipeline_keeper import PipelineKeeper
from capture.node.shutdown import Stopping, reloading
from natty import Natty, NattyError
from natty.wire.background import cancel_all, wait_until_set

log = logging.getLogger("capture.several")

RETRY_STREAM = 10.0  # seconds until a stream that failed is tried again
LEAVE_WITHIN = 10.0  # seconds that nodes have to end after the deadline of their drain


class Several:
    """The nodes of one process. Without `keep_going` the first stream that fails stops all of them, as a signal does.

    With `keep_going` the others continue, and a stream that failed, or does not exist yet, is tried again every
    RETRY_STREAM seconds until the process stops. `failing` says for each of these streams why it does not run now.
    """

    def __init__(
        self,
        config: CaptureConfig,
        *,
        load: Callable[[], CaptureConfig] | None = None,
        on_reload: Callable[[CaptureConfig], None] | None = None,
    ) -> None:
        """`config` names the streams in `streams`; with a `stream` it captures that one.

        `load` and `on_reload` are as for `Node`: at SIGHUP every node applies the changes for its stream. ConfigError.
        """
        self.config = config
        configs = each(config)
        self._load, self._on_reload = load, on_reload
        self.keeper: PipelineKeeper | None = None
        self.nodes = [self._node(config) for config in configs]
        self.failing: dict[str, str] = {}
        self.start = Start(configs[0].start_timeout)
        self._errors: list[Exception] = []
        self._stopping = Stopping()
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"Several({self.nodes}, {len(self.failing)} failing)"

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, like `Node.run`. Raises the first node's error once all nodes have ended."""
        first = self.nodes[0]
        settings = {"name": f"capture {first.name}", **first.config.nats}
        with reloading(self.reload) if self._load else contextlib.nullcontext():
            async with self._stopping.scope(), self.start.enter(lambda: Natty(**settings)) as natty:
                standing = []
                if self.config.candidates != "none":
                    self.keeper = PipelineKeeper(natty, self.config, first.name)
                    first.beside = self.keeper.failing
                    standing.append(asyncio.create_task(self.keeper.stand()))
                try:
                    with self._stopping.draining(self._stop):
                        async with asyncio.TaskGroup() as running:
                            for index in range(len(self.nodes)):
                                running.create_task(self._run(index, natty))
                finally:
                    await cancel_all(standing)
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Stop as at SIGTERM. Idempotent."""
        self._stopping.request()

    async def _run(self, index: int, natty: Natty) -> None:
        """Run a node; if it fails and the others continue, replace it with a new one."""
        while not await self._run_once(self.nodes[index], natty):
            await wait_until_set(self._stopped, RETRY_STREAM)
            if self._stopping.requested:
                return
            before = self.nodes[index]
            node = self.nodes[index] = self._node(before.config)
            node.stored = before.stored  # its counters continue
            node.beside = before.beside
            del self.failing[node.config.stream]

    async def _run_once(self, node: Node, natty: Natty) -> bool:
        """Run a node until it ends; return False if it failed and must be started again."""
        try:
            await node.run_beside(natty)
        except (CaptureError, NattyError) as error:
            stream = node.config.stream
            log.error("stream %s failed: %s", stream, error, extra={"action": "stream_failed"})
            if node.config.keep_going and not self._stopping.requested:
                self.failing[stream] = str(error)
                return False
            self._errors.append(error)
            self.stop()
        return True

    def _node(self, config: CaptureConfig) -> Node:
        def load() -> CaptureConfig:
            assert self._load is not None
            for one in each(self._load()):
                if one.stream == config.stream:
                    return one
            raise CaptureError(f"stream {config.stream} is no longer configured: this needs a restart")

        return Node(config, load=load, on_reload=self._on_reload)

    def _stop(self) -> float:
        self._stopped.set()
        for node in self.nodes:
            node.stop()
        return max(node.config.drain for node in self.nodes) + LEAVE_WITHIN

    def reload(self) -> None:
        """Make every node apply the changes for its stream."""
        for node in self.nodes:
            node.reload()
        assert self._load is not None
        try:
            change = plan_reload(self.config, self._load())
        except (CaptureError, NattyError) as error:  # each node has logged it
            log.debug("nothing was reloaded: %s", error)
            return
        self.config = change.config
        if pipelines := [one for one in change.changed if one.startswith("pipeline")]:
            log.info("reloaded: %s", "; ".join(pipelines), extra={"action": "reload"})
        if self.keeper:
            self.keeper.config = change.config

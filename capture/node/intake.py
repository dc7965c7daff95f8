"""How a node reads its stream: through the consumers that the configuration names, or by direct gets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from capture.archive.identity import claim
from capture.config.consumers import consumers
from capture.config.settings import CaptureConfig
from capture.ingest.durable import TOGETHER, Durable, prepare
from capture.ingest.group_source import GroupSource, direct_roster_key, roster_key
from capture.ingest.source import Source, stream_info
from capture.node.direct_source import DirectSource, Reach, check_direct
from capture.node.moved_store import check_not_moved
from capture.node.status.backlog import Backlog, read_backlog, read_direct_backlog
from capture.reading.remaining import ArchivePosition, record_direct_scope
from capture.reading.stream_range import StreamFacts
from capture.stores import Store
from natty import Natty


class Intake:
    """Prepares and opens the source of a node's messages. With `reach` it is read by direct gets in any case."""

    def __init__(
        self, config: CaptureConfig, store: Store, *, seal: Callable[[], None], reach: Reach | None = None
    ) -> None:
        """`seal` seals the open blocks, so that they are stored."""
        self._config, self._store, self._seal, self._reach = config, store, seal, reach
        self._is_direct = config.is_direct or reach is not None
        self._durables: list[Durable] = []
        self._stream: StreamFacts | None = None  # that is read by direct gets
        self._direct: DirectSource | None = None
        self._position: ArchivePosition | None = None

    def __repr__(self) -> str:
        return f"Intake({self._config.stream}, {self.describe()})"

    @property
    def ends(self) -> bool:
        """Whether there is an end to what is read."""
        return self._reach is not None and self._reach.ends

    @property
    def trouble(self) -> str:
        """Why nothing is read by direct gets at the moment; "" if it is. What consumers bring, the server reports."""
        return self._direct.trouble if self._direct else ""

    async def prepare(self, natty: Natty) -> None:
        """Claim the store, and create the consumers that are missing. Idempotent.

        ConfigError if the stream does not allow to be captured in this way; the errors of `prepare` and `claim`.
        """
        config, store = self._config, self._store
        info = await stream_info(natty, config.stream)
        await check_not_moved(natty, store, config)
        await claim(store, config.name, config.stream, info["created"], config.signer())
        if self._is_direct:
            self._stream = check_direct(natty, info)
            if self._reach is None:
                self._reach = Reach(await record_direct_scope(natty, store, config, info["created"]))
            return
        self._durables = await consumers(natty, config)
        for wanted in self._durables:
            await prepare(natty, store, wanted)

    def open(self, natty: Natty) -> AbstractAsyncContextManager[Source | GroupSource | DirectSource]:
        """Return the source, after `prepare`."""
        config = self._config
        if self._stream is not None and self._reach is not None:
            position = self._position = ArchivePosition(natty, config, self._store)
            reach = self._reach
            named = f"{reach.first}-{reach.last}" if reach.ends else ""
            key = direct_roster_key(config.stream, config.name, named)
            self._direct = DirectSource(natty, self._stream, position, reach, roster=key, seal=self._seal)
            return self._direct
        if not config.group:
            together = config.ack == TOGETHER
            return Source(natty, config.stream, config.durable, ack_wait=config.ack_wait, together=together)
        return GroupSource(
            natty,
            config.stream,
            [one.name for one in self._durables],
            roster="" if config.member else roster_key(config.stream, config.group),
            ack_wait=config.ack_wait,
            drain=config.drain,
            seal=self._seal,
        )

    def describe(self) -> str:
        """Return how the stream is read, for the log."""
        if self._reach is not None:
            until = f"to {self._reach.last:,}" if self._reach.ends else "on"
            return f"by direct gets, from sequence {self._reach.first:,} {until}"
        names = ", ".join(one.name for one in self._durables)
        return (
            f"through consumer {names}"
            if len(self._durables) == 1
            else f"through {len(self._durables)} consumers, {names}"
        )

    async def read_backlog(self, natty: Natty) -> Backlog:
        """Return what is still to be captured. NattyError; without a consumer also StoreError and ManifestError."""
        if self._is_direct:
            position = self._position or ArchivePosition(natty, self._config, self._store)
            return await read_direct_backlog(natty, self._store, position)
        return await read_backlog(natty, self._config)

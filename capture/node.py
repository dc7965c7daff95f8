from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from capture.block import OpenBlocks
from capture.commit import CommitOptions, Committer
from capture.config import CaptureConfig
from capture.decoders import decoder
from capture.head import COMPACTION, SWEEP
from capture.identity import claim
from capture.lead import Duty
from capture.manifest import Stored
from capture.partitioners import UNDECODABLE, grouped, partitioner
from capture.pipeline import capture
from capture.source import Source, stream_info
from capture.spark import unavailable
from capture.stores import Store, open_store
from capture.writers import writer
from natty import Election, Natty, NattyError, RequestTimeoutError, Term, UnsupportedError
from natty.leader import default_node_name

log = logging.getLogger(__name__)

START_TIMEOUT = 60.0  # seconds that a server may take to answer when the node starts
RETRY_DUTY = 5.0  # seconds before a leader's failed duty is taken up again


class Node:
    """One process of the fleet: it captures always, and sweeps or compacts while it leads the one or the other."""

    def __init__(self, config: CaptureConfig) -> None:
        self.config = config
        self.name = config.node or default_node_name()
        self.store: Store = open_store(config.store)
        self.stored: Counter[str] = Counter()
        self.natty: Natty | None = None  # from when it is connected
        self._decode = decoder(config.decoder)
        self._partition = grouped(partitioner(config.partition), interval=config.limits.interval)
        self.writer = writer(
            config.format,
            decode=self._decode,
            compression=config.compression,
            flatten=config.flatten,
            keys=config.keys() if config.encrypt else None,
        )

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.config.stream} → {self.store.url}, {dict(self.stored)})"

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT: then what was read is stored and acked, and office is left.

        Raises NattyError when the stream or the server is missing, StoreError when a block could not be stored.
        """
        async with Natty(**{"name": f"capture {self.name}", **self.config.nats}) as natty:
            self.natty = natty
            await self._prepare(natty)
            campaigns = await self._campaigns(natty)
            try:
                await self._capture(natty)
            finally:
                for campaign in campaigns:
                    campaign.cancel()
                await asyncio.gather(*campaigns, return_exceptions=True)
        log.info("%s stopped: %d messages in %d blocks", self.name, self.stored["messages"], self.stored["blocks"])

    async def _prepare(self, natty: Natty) -> None:
        """Make what is missing. A server that does not answer yet, as while its leaders are elected, is waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT
        while True:
            try:
                return await self._claim(natty)
            except RequestTimeoutError as error:
                if loop.time() >= deadline:
                    raise
                log.warning("not ready to capture yet: %s", error, extra={"action": "wait"})

    async def _claim(self, natty: Natty) -> None:
        stream = await stream_info(natty, self.config.stream)
        await claim(self.store, self.config.name, self.config.stream, stream["created"])
        await natty.ensure_consumer(
            self.config.stream,
            self.config.durable,
            ack_wait=self.config.ack_wait,
            max_ack_pending=self.config.max_ack_pending,
            filter_subjects=self.config.filter_subjects or None,
        )

    async def _capture(self, natty: Natty) -> None:
        config = self.config
        source = Source(natty, config.stream, config.durable, ack_wait=config.ack_wait)
        options = CommitOptions(node=self.name, interval=config.limits.interval, give_up=config.sweep.grace / 2)
        committer = Committer(self.store, self.writer, source, options, on_store=self._count)
        async with source:
            with _stopped_by_signals(source.stop):
                log.info("%s captures %s into %s", self.name, config.stream, self.store.url)
                await capture(
                    source, self._decode, self._partition, OpenBlocks(config.limits.limits()), committer.commit
                )

    def _count(self, stored: Stored) -> None:
        self.stored.update(blocks=1, messages=stored.count, bytes=stored.bytes)
        if stored.key == UNDECODABLE:
            self.stored[UNDECODABLE] += stored.count

    async def _campaigns(self, natty: Natty) -> list[asyncio.Task[None]]:
        """Be a candidate for both offices, or for the sweep alone where Spark can't run."""
        config = self.config
        spark_log = Path(config.log) / f"spark-{self.name}.log" if config.log else None
        duty = Duty(natty, self.store, config, self.name, spark_log=spark_log)
        offices = [(SWEEP.election(config.name), config.lease, duty.sweep)]
        if reason := await asyncio.to_thread(unavailable, config.spark.options()):
            log.warning(
                "%s is no candidate for the compaction, other nodes are: %s",
                self.name,
                reason,
                extra={"action": "no_spark"},
            )
        else:
            offices.append((COMPACTION.election(config.name), config.compaction.lease, duty.compact))
        return [
            asyncio.create_task(self._campaign(natty.election(name, lease=lease, node_name=self.name), work))
            for name, lease, work in offices
        ]

    async def _campaign(self, election: Election, work: Callable[[Term], Awaitable[None]]) -> None:
        """Be a candidate for as long as the node runs. A duty that fails is logged and taken up again, by somebody."""
        name = election.options.name
        while True:
            try:
                await election.run(work)
            except UnsupportedError as error:
                log.error("this node is no candidate for %s: %s", name, error, extra={"action": "no_leader"})
                return
            except NattyError as error:
                log.error("the campaign for %s failed: %s", name, error, extra={"action": "campaign_failed"})
            except Exception:
                log.exception("the work of the leader of %s failed", name, extra={"action": "duty_failed"})
            await asyncio.sleep(RETRY_DUTY)


@contextlib.contextmanager
def _stopped_by_signals(stop: object) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

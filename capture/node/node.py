"""A node: one process of the fleet. It captures a stream, and runs a leader's tasks while it is elected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from capture.archive.heads import COMPACTION, SWEEP
from capture.config.consumers import explain_deletion
from capture.config.reload import check_reload, check_uses
from capture.config.settings import CaptureConfig
from capture.decoders import decoder
from capture.errors import CaptureError, ConfigError, NotDrainedError, StoreError
from capture.formats import Writer
from capture.formats import writer as choose_writer
from capture.ingest.block import OpenBlocks
from capture.ingest.board import Board, NodeState, announce
from capture.ingest.commit import Acknowledger, CommitOptions, Committer
from capture.ingest.handed_back import HandedBack
from capture.ingest.hooks import Completion, Hook, hook
from capture.ingest.layout import layout
from capture.ingest.pipeline import InFlight, capture
from capture.ingest.startup import Start
from capture.node.campaign import campaign
from capture.node.direct_source import Reach
from capture.node.intake import Intake
from capture.node.leader_tasks import Duty
from capture.node.pipeline_keeper import PipelineKeeper
from capture.node.shutdown import Stopping, reloading
from capture.node.status.backlog import summarise
from capture.partitioners import UNDECODABLE, partitioner
from capture.spark import unavailable
from capture.stores import Store, open_store
from capture.stores.open import explain_unopenable
from capture.stores.own_store import guard
from natty import Batch, Natty, NattyError
from natty.config.units import write_count
from natty.elections import default_node_name
from natty.errors import ConsumerNotFoundError, StreamNotFoundError
from natty.wire.background import cancel_all, keep_up

LONGEST_TROUBLE = 1000  # characters of a failure's sentence in the state that the node publishes

log = logging.getLogger("capture.node")
life = logging.getLogger("capture.run")
"""Logs when a node captures, and what it did: the command line shows both at any level but `error`."""

TROUBLE_LASTS = 60.0  # seconds from the time when a block that was not stored could be stored again
REPORT_WITHIN = 2.0  # seconds that the server has to report what is acknowledged, at a stop with a failing store
RELOAD = {"action": "reload"}
ONE_STREAM = "a Node captures one stream: name it in `stream`; `capture run` captures several `streams`"


class Node:
    """A process of the fleet. It always captures; it sweeps or compacts while it is the elected leader for that."""

    def __init__(
        self,
        config: CaptureConfig,
        *,
        store: Store | None = None,
        writer: Writer | None = None,
        on_store_complete: Callable[[Completion], Any] | None = None,
        load: Callable[[], CaptureConfig] | None = None,
        on_reload: Callable[[CaptureConfig], None] | None = None,
        reach: Reach | None = None,
    ) -> None:
        """`store` replaces the configured store; it is any object that passes `capture.stores.check_store`.

        Other processes open it by its `url`. If they can't, this node does not compact, and commands can't read the
        archive: then configure `store = "module:function"` instead. ConfigError if `store` is not a store.

        `writer` replaces the configured format; it is any object that passes `capture.formats.check_writer`.
        Compression and encryption are added around it as configured. ConfigError if `writer` is not a writer.

        `on_store_complete` replaces the configured hook; see `capture.ingest.hooks.Hook`.

        `load` reads the configuration again at SIGHUP; without it, SIGHUP keeps its usual meaning. `on_reload` is
        called with the new configuration.

        With `reach`, the node reads these sequences, by direct gets; it returns after the last one if they end.
        """
        self.config = config
        self.name = config.node or default_node_name()
        self.store: Store = open_store(config.store if store is None else guard(store))
        self.stored: Counter[str] = Counter()
        self.natty: Natty | None = None  # set once it is connected
        self.start = Start(config.start_timeout)
        self._load, self._on_reload = load, on_reload
        self._stopping = Stopping()
        self._hook = hook(config.on_store_complete) if on_store_complete is None else on_store_complete
        self._layout = layout(config.layout)
        self._blocks = OpenBlocks(config.block_limits(), config.buffers.spill())
        self._intake = Intake(config, self.store, seal=self._blocks.seal, reach=reach)
        self._duty: Duty | None = None
        self.keeper: PipelineKeeper | None = None
        self.beside: Mapping[str, str] = {}  # failures of what this process does for several streams
        self._completions: Hook | None = None  # calls the user's hook
        self._settled = 0  # messages that were stored or handed back
        self._unstored = 0  # the other messages that were read before the stop
        self._handed_back = HandedBack(config.limits.max_age + max(config.redeliver_after, default=0.0) + TROUBLE_LASTS)
        self._in_flight = InFlight(self._blocks, config.slots, stop_on_failure=config.on_store_failure == "stop")
        self._since = time.time()
        decode, partition = decoder(config.decoder), partitioner(config.partition)
        self.writer = choose_writer(
            writer or config.format,
            decode=decode,
            compression=config.compression,
            flatten=config.flatten,
            envelope=config.envelope,
            keys=config.block_keys(),
        )
        self._pipeline = partial(capture, decode=decode.decode, partition=partition, retain=self.writer.retain)
        if config.streams or not config.stream:
            raise ConfigError(ONE_STREAM)
        check_uses(config)

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.config.stream} → {self.store.url}, {dict(self.stored)})"

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; then store and acknowledge what was read, and resign from elections.

        At the start it waits for a server or a store that is not reachable; see `Start`. A second signal ends the
        process at once.

        Raises NattyError if the stream is missing or the server refuses access; StoreError if the store refuses access,
        or if a block could not be stored and the configuration says to stop; NotStartedError if the server or the store
        was not reachable in time; NotDrainedError if messages that were read before the stop are not stored.
        """
        settings = {"name": f"capture {self.name}", **self.config.nats}
        with reloading(self.reload) if self._load else contextlib.nullcontext():
            async with self._stopping.scope(), self.start.enter(lambda: Natty(**settings)) as natty:
                await self._work(natty)
        self._conclude()

    async def run_beside(self, natty: Natty) -> None:
        """Run until `stop` over a connection that this process shares with other nodes. Raises the errors of `run`."""
        if not self._stopping.requested:
            async with self._stopping.scope(()):
                await self._work(natty)
            self._conclude()

    def stop(self) -> None:
        """Stop as at SIGTERM. Idempotent."""
        self._stopping.request()

    async def _work(self, natty: Natty) -> None:
        self.natty = natty
        await self.start.step(lambda: self._intake.prepare(natty))
        tasks = [
            *await self._campaigns(natty),
            asyncio.create_task(keep_up(f"the summary of {self.name}", lambda: self._summarise(natty))),
        ]
        async with announce(Board(natty, self.config.name), self.name, self.state):
            try:
                await self._capture(natty)
            finally:
                await cancel_all(tasks)

    def _conclude(self) -> None:
        stored = write_count(self.stored["messages"], "message"), write_count(self.stored["blocks"], "block")
        life.info("%s stopped: %s in %s stored", self.name, *stored, extra={"action": "ended"})
        if unstored := self._unstored + len(self._handed_back):
            within = f" within the {self.config.drain:g} s that a stop may take" if self._unstored else ""
            raise NotDrainedError(
                f"{unstored:,} of the messages that were read could not be stored{within}: none of these was"
                f" acknowledged, they were handed back and will be delivered again"
            )

    @property
    def store_trouble(self) -> str:
        """Why blocks are not stored at the moment; "" if they are."""
        return self._handed_back.trouble

    def state(self) -> NodeState:
        """Return the state that the node publishes."""
        limits, due = self._blocks.limits, self._blocks.next_due(time.monotonic())
        open_for = None if due is None else limits.max_age - due
        return NodeState(
            node=self.name,
            version=_software_version(),
            since=self._since,
            every=self.config.sweep.every,
            stored=dict(self.stored),
            pending=self._blocks.pending + self._in_flight.messages,
            oldest=max((age for age in (open_for, self._in_flight.longest) if age is not None), default=None),
            lowest=min(filter(None, [self._blocks.lowest, self._in_flight.lowest]), default=None),
            location=self._duty.location if self._duty and self._duty.can_compact else "",
            troubles=[
                text[:LONGEST_TROUBLE]
                for text in (
                    *filter(None, [self.store_trouble]),
                    *(self._duty.failing.values() if self._duty else ()),
                    *(self.keeper.failing.values() if self.keeper else ()),
                    *self.beside.values(),
                    *self._describe_refusals(),
                )
            ],
            store_trouble=self.store_trouble[:LONGEST_TROUBLE],
            catalogs=self._duty.catalogs if self._duty else [],
            fresh=self._duty.fresh if self._duty else None,
            compaction=self._duty.compaction if self._duty else None,
        )

    def _describe_refusals(self) -> list[str]:
        """Return a sentence for each permission that the server refuses this node at the moment."""
        refused = self.natty.connection.refusals.recent() if self.natty else []
        return [f"the server refused: {one}: give the node's user that permission" for one in refused]

    async def _capture(self, natty: Natty) -> None:
        config = self.config
        told = Hook(self._hook) if self._hook else contextlib.nullcontext()
        async with told as self._completions, self.start.enter(lambda: self._intake.open(natty)) as source:
            commit = self._handed_back.watch(self._committer(source, self._settle).commit)

            def stop() -> float:
                log.info("%s stops within %g s: it stores what it has read", self.name, self.config.drain)
                source.stop()
                return self.config.drain

            try:
                with self._stopping.draining(stop):
                    self.start.over = True
                    life.info("%s", self._describe_start(), extra={"action": "began"})
                    blocks, in_flight = self._blocks, self._in_flight
                    await self._pipeline(source, blocks=blocks, commit=commit, in_flight=in_flight)
            except (ConsumerNotFoundError, StreamNotFoundError) as error:
                raise type(error)(explain_deletion(error, config), code=error.code, err_code=error.err_code) from error
            finally:
                if self._stopping.requested:
                    self._unstored = source.read - self._settled
                    await self._forget_acknowledged(natty)

    async def _forget_acknowledged(self, natty: Natty) -> None:
        """Forget the messages that this node has handed back, and that another node has stored."""
        if self._handed_back:
            with contextlib.suppress(NattyError, CaptureError, TimeoutError):
                async with asyncio.timeout(REPORT_WITHIN):
                    self._handed_back.forget((await self._intake.read_backlog(natty)).acked)

    def _committer(self, acknowledger: Acknowledger, completed: Callable[[Completion], None]) -> Committer:
        """Return the committer that stores blocks as configured. It calls `completed`, and then the user's hook."""
        config = self.config
        options = CommitOptions(
            node=self.name,
            interval=config.limits.interval,
            give_up=config.sweep.grace / 2,
            attempts=config.store_attempts,
            redeliver_after=config.redeliver_after,
        )

        def on_complete(completion: Completion) -> None:
            completed(completion)
            if self._completions:
                self._completions(completion)

        return Committer(self.store, self.writer, acknowledger, options, layout=self._layout, on_complete=on_complete)

    async def _store_messages(self, messages: AsyncIterable[Batch], acknowledger: Acknowledger) -> None:
        """Store messages that the sweep's leader has read, in the same way as delivered ones. Raises StoreError."""

        def count_healed(completion: Completion) -> None:
            self._count(completion)
            if completion.error is None:
                self.stored["healed"] += completion.count

        blocks, commit = OpenBlocks(self._blocks.limits), self._committer(acknowledger, count_healed).commit
        await self._pipeline(messages, blocks=blocks, commit=commit, in_flight=InFlight(blocks, self.config.slots))

    def _describe_start(self) -> str:
        return f"{self.name} captures {self.config.stream} into {self.store.url}, {self._intake.describe()}"

    def _count(self, completion: Completion) -> None:
        if completion.error is None:
            self.stored.update(blocks=1, messages=completion.count, bytes=completion.bytes)
            if completion.key == UNDECODABLE:
                self.stored[UNDECODABLE] += completion.count
        else:
            self.stored.update(failures=1, handed_back=completion.count)

    def _settle(self, completion: Completion) -> None:
        self._count(completion)
        if completion.error is None or isinstance(completion.error, StoreError):
            self._settled += completion.count

    def reload(self) -> None:
        """Apply the settings that may change in a running node. An invalid configuration changes nothing."""
        assert self._load is not None
        try:
            change = check_reload(self.config, self._load())
        except (CaptureError, NattyError) as error:
            log.error("nothing was reloaded, the old configuration stays: %s", error, extra={"action": "reload"})
            return
        self.config = change.config
        self._blocks.change(change.config.block_limits())
        if self._duty:
            self._duty.config = change.config
        if self.keeper:
            self.keeper.config = change.config
        if self._on_reload:
            self._on_reload(change.config)
        log.info("%s reloaded: %s", self.name, ", ".join(change.changed) or "nothing to change", extra=RELOAD)
        if change.kept:
            log.warning("%s needs a restart to change %s", self.name, ", ".join(change.kept), extra=RELOAD)

    async def _summarise(self, natty: Natty) -> None:
        await summarise(
            self.name,
            self.stored,
            lambda: self.config.logging.summary_every,
            lambda: self._intake.read_backlog(natty),
        )

    async def _campaigns(self, natty: Natty) -> list[asyncio.Task[None]]:
        """Start as a candidate for both leaders' tasks, or only for the sweep if Spark can't run."""
        config = self.config
        if config.candidates == "none":
            log.info("%s is not a candidate for leadership (candidates)", self.name, extra={"action": "no_candidate"})
            return []
        spark_log = Path(config.log) / f"spark-{self.name}.log" if config.log else None
        duty = self._duty = Duty(natty, self.store, config, self.name, spark_log=spark_log)
        duty.store_messages = self._store_messages
        offices = [(SWEEP.election(config.name), config.lease, duty.sweep)]
        if self._intake.ends:
            log.info("%s is not a candidate for the compaction: it will end", self.name)
        elif reason := explain_unopenable(self.store.url):
            text = "%s is not a candidate for the compaction: Spark's processes can't open its store: %s"
            log.warning(text, self.name, reason, extra={"action": "no_store_url"})
        elif reason := await asyncio.to_thread(unavailable, config.spark.options()):
            log.log(
                logging.WARNING if config.has_compaction or config.table.fresh else logging.INFO,
                "%s is not a candidate for the compaction, a node with Spark has to run for it%s: %s",
                self.name,
                " and for the fresh table" if config.table.fresh else "",
                reason,
                extra={"action": "no_spark"},
            )
        else:
            duty.can_compact = True
            offices.append((COMPACTION.election(config.name), config.compaction.lease, duty.compact))
        tasks = [
            asyncio.create_task(campaign(natty.election(name, lease=lease, node_name=self.name), work))
            for name, lease, work in offices
        ]
        self.keeper = PipelineKeeper(natty, config, self.name)
        return [*tasks, asyncio.create_task(self.keeper.stand())]


def _software_version() -> str:
    """Return "" if it runs from a folder and is not installed."""
    try:
        return version("natty-nats")
    except PackageNotFoundError:
        return ""

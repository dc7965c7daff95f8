"""Provides `capture.restore`, which restores a stream from its archive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from capture.config.load import load
from capture.config.settings import CaptureConfig
from capture.reading.options import Where
from capture.reading.read import store_of, time_ns_of
from capture.restoring.past import Window, only_stream
from capture.restoring.plan import Options, Plan
from capture.restoring.rebuild import Restored, prepare, restore_exactly
from capture.restoring.replay import rebuild_published
from capture.stores.own_store import opening_url
from natty import Natty


async def restore(
    natty: Natty,
    archive: Where,
    stream: str = "",
    *,
    at: datetime | str | None = None,
    to_sequence: int | None = None,
    start: int | datetime | str | None = None,
    subjects: tuple[str, ...] = (),
    everything: bool = False,
    name: str = "",
    consumers: bool = True,
    replicas: int | None = None,
    detached: bool = False,
    again: bool = False,
    offline: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Restored:
    """Restore a stream from its archive, on the server that `natty` is connected to.

    `archive` is a folder (text or Path), a URL, a Store, or a configuration (for keys, public keys and the archive's
    name). Without `stream` the archive must have only one. `at` is the moment to go back to, with configuration and
    consumers as recorded then; `to_sequence` is the last sequence, `start` the first one, or a time. A time is a
    datetime with its zone, or a text such as 2026-11-21T06:00:00.123456789Z; only a text has every nanosecond.
    `subjects` select messages; the others become gaps. `everything` selects all that the archive holds, including
    messages that were deleted or had expired. The stream gets `name` or its old name, and `replicas` or its old number.
    Its durable `consumers` continue after the messages that they have acknowledged. A `detached` stream is a copy that
    takes no messages and has no consumers. `again` first deletes what an interrupted restore has left. `offline` trusts
    the newest documents in the store, and does not read the committed heads from NATS. `on_plan` is called with the
    plan before anything is written, and may raise; `on_progress` with the number of messages sent, and the number to
    send.

    On nats-server 2.15 and later sequences, times and headers are exactly as they were; from 2.10 on only sequences
    are, see `Restored.not_kept`. From plain Parquet it takes less than 64 MB of memory; docs/restore.md says what needs
    more.

    RestoreRefusedError if a restore is not possible; nothing was written. RestoreError, FormatError (a damaged object),
    CipherError (a key), ManifestError, StoreError and NattyError: it removed what it had written, or the error says
    what is left.
    """
    store = store_of(archive)
    config = load_config(archive, stream or await only_stream(store))
    window = Window(
        at_ns=time_ns_of(at),
        to_sequence=to_sequence,
        start=start if isinstance(start, int) else None,
        start_ns=None if isinstance(start, int) else time_ns_of(start),
        subjects=tuple(subjects),
        everything=everything,
    )
    options = Options(window=window, name=name, consumers=consumers, replicas=replicas, detached=detached, again=again)
    plan = await prepare(natty, config, store, options, offline=offline)
    if on_plan is not None:
        on_plan(plan)
    carry_out = restore_exactly if plan.exact else rebuild_published
    return await carry_out(natty, plan, store, config.keys(), on_progress)


def load_config(archive: Where, stream: str) -> CaptureConfig:
    """Return the configuration of an archive, for this stream. ConfigError."""
    if isinstance(archive, CaptureConfig):
        return msgspec.structs.replace(archive, stream=stream)
    store = str(archive) if isinstance(archive, str | Path) else opening_url(archive)
    return load(None, {"store": store, "stream": stream}, environment={})

"""`capture head`: prints the archive's heads."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from capture.archive.chain import Head, latest_offline
from capture.archive.heads import head_readers
from capture.archive.identity import require_archive
from capture.cli import settings
from capture.cli.archive import Offline
from capture.config.load import NEEDED
from capture.errors import CaptureError
from capture.stores import open_store
from capture.verification.audit import CHAINS
from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async


@connect.options
def head(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    offline: Offline = False,
) -> None:
    """Print the archive's heads as JSON lines, to store elsewhere: capture verify --noted compares them."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats, needs=("store",) if offline else NEEDED)

    async def read() -> list[Head | None]:
        if offline:
            store = open_store(wanted.store)
            await require_archive(store)
            return [await latest_offline(store, kind) for kind in CHAINS]
        async with Natty(**wanted.nats) as natty:
            readers = head_readers(natty, wanted.name)
            return [await readers[kind]() for kind in CHAINS]

    found = [one for one in run_async(read()) if one is not None]
    if not found:
        run_async(require_archive(open_store(wanted.store)))  # raises if the store is mistyped
        raise CaptureError(f"archive {wanted.name} has no head yet: the first sweep writes one")
    for one in found:
        print(json.dumps(msgspec.to_builtins(one)))

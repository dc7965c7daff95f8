"""Checks before a node starts that the store holds the archive's history: compares the store with the state in NATS."""

from __future__ import annotations

from capture.archive.chain import Head, document_parts
from capture.archive.heads import SWEEP
from capture.archive.identity import stream_path
from capture.archive.manifest import Manifest
from capture.config.consumers import consumer_states
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, NotStoredError, OtherStoreError
from capture.ingest.board import Board
from capture.stores import Store
from capture.stores.own_store import opening_url
from natty import Natty, NattyError

WAYS_ON = (
    "Copy the whole archive to {new} first; or go back to {old}; or start a new archive in {new}, with another name"
    " (archive) and another durable: see docs/moving.md"
)


async def check_not_moved(natty: Natty, store: Store, config: CaptureConfig) -> None:
    """Check that the archive's history, if it has one, is in this store. Changes nothing. Raises OtherStoreError.

    It reads NATS first and then the store, so that the store has the changes that another node makes in between. It
    compares stores by their contents, not by their URLs: a copy is the archive, and so is another spelling of the URL.
    A store that has lost only its newest manifest is damaged, and still the archive's: sweeps report it, nodes run.
    """
    head = await SWEEP.reader(natty, config.name)()
    states = await consumer_states(natty, config)
    if head is not None and not await _has(natty, store, config, head):
        known = await _read_known_store(natty, config)
        raise OtherStoreError(
            f"{_explain(config, known, store)}: NATS records manifest {head.number} of it as the committed one"
            f" ({head.path}), and that is not in {store.url}. {_ways(known, store)}"
        )
    acknowledged = [one for one in states if one["ack_floor"]["consumer_seq"]]
    if acknowledged and not await _is_captured(store, config.stream):
        names = ", ".join(one["name"] for one in acknowledged)
        raise OtherStoreError(
            f"{store.url} holds nothing of stream {config.stream}, and its consumer {names} has acknowledged"
            f" messages up to sequence {max(one['ack_floor']['stream_seq'] for one in acknowledged):,}: they would be"
            f" missing here. {_ways(await _read_known_store(natty, config), store)}"
        )


async def _has(natty: Natty, store: Store, config: CaptureConfig, head: Head) -> bool:
    """Return whether the store holds the chain of this head: its manifest, or later ones.

    A head that went back, with NATS' disk, names a manifest that was deleted; the next leader takes the newest
    manifest.
    """
    found = {
        one.path: parts[0] for one in await store.list(Manifest.FOLDER) if (parts := document_parts(Manifest, one.path))
    }
    if head.path in found or max(found.values(), default=0) > head.number:
        return True
    is_clear = opening_url(store) == store.url  # otherwise a store with other settings may have the same URL
    return bool(found) and is_clear and await _read_known_store(natty, config) == store.url


async def _is_captured(store: Store, stream: str) -> bool:
    try:
        await store.get(stream_path(stream))
    except NotStoredError:
        return False
    return True


async def _read_known_store(natty: Natty, config: CaptureConfig) -> str:
    """Return the store's URL in the published state of the last sweep; "" if there is none."""
    try:
        state = (await Board(natty, config.name).read()).state
    except (CaptureError, NattyError):
        return ""
    return state.store if state else ""


def _explain(config: CaptureConfig, known: str, store: Store) -> str:
    if known == store.url:
        return f"the store {store.url} has lost the archive {config.name}"
    return f"the archive {config.name} is in {known or 'another store'}, not in {store.url}"


def _ways(known: str, store: Store) -> str:
    old = "its copy" if known == store.url else known or "the earlier store"
    return WAYS_ON.format(new=store.url, old=old)

"""The rules of a configuration for the leaders: what is merged, what retention removes, and where the table is."""

from __future__ import annotations

import logging

import msgspec

from capture.archive import chain
from capture.archive.heads import COMPACTION
from capture.archive.iceberg_state import Expiry, archive_location, base_location
from capture.archive.retention import Retention
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import Board
from capture.ingest.board_trouble import disagreement
from capture.maintenance.compaction_plan import Policy
from capture.stores import Store
from natty import Natty, NattyError

log = logging.getLogger("capture.lead")


def policy(config: CaptureConfig) -> Policy:
    """Return the compaction's rules."""
    wanted = config.compaction
    return Policy(
        target_bytes=wanted.target_bytes,
        min_files=wanted.min_files,
        max_wait=wanted.max_wait,
        max_groups=wanted.max_groups,
        max_bytes=wanted.max_bytes,
        encrypted=config.keys() is not None,
        encrypted_only=config.encrypted_only,
        decrypt=wanted.decrypt,
        distinct=wanted.distinct,
    )


def retention(config: CaptureConfig) -> Retention:
    """Return the retention rules."""
    return Retention(config.retention, config.limits.interval)


def location(store: Store, config: CaptureConfig) -> str:
    """Return the archive's URL as this node writes it into the table's metadata."""
    return archive_location(store, config.table.location)


async def read_rule(natty: Natty, store: Store, config: CaptureConfig, node: str) -> Expiry:
    """Return `[table]`, with the table's present location while the nodes disagree on it.

    Metadata contain absolute paths: otherwise each new leader would rewrite them all, and the table would lose its
    history.
    """
    differing = await _find_difference(natty, store, config, node)
    if not differing:
        return config.table
    log.error("the table stays where it is: %s", differing, extra={"action": "locations_differ"})
    table = await chain.read(store, await COMPACTION.reader(natty, config.name)(), Table)
    return msgspec.structs.replace(config.table, location=base_location(table.iceberg) or location(store, config))


async def _find_difference(natty: Natty, store: Store, config: CaptureConfig, node: str) -> str:
    """Return how the nodes differ in the archive's location, or why that is unknown; "" if they agree."""
    try:
        said = (await Board(natty, config.name).read()).locations
    except (CaptureError, NattyError) as error:
        return f"its location for other nodes is not known: {error}"
    return disagreement({**said, node: location(store, config)})

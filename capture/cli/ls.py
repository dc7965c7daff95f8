"""`capture ls`: lists the objects of an archive while it reads them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import msgspec

from capture.archive.identity import archive_name, require_archive
from capture.archive.manifest import Stored
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.reading.inventory import Inventory, take_partial_inventory
from capture.stores import Store, open_store
from natty.cli.run import run_async
from natty.cli.tables import GrowingTable, print_document
from natty.cli.terminal import json_text, say
from natty.config.units import write_count

FEW = 100
"""Objects whose JSON is printed as one document, which may be coloured on a terminal."""


def ls(
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    public_key: settings.PublicKey = None,
    encrypted_only: settings.EncryptedOnly = False,
    as_json: settings.Json = False,
) -> None:
    """List the archive's blocks and table files, from the newest manifest and table in the store. Needs no server.

    New blocks are stored, and a sweep adopts them into the manifest.
    """
    flags = {"stream": stream, "store": store, **settings.checks(public_key, encrypted_only)}
    wanted = settings.archive(config, flags, {}, needs=("store",))
    run_async(_list(open_store(wanted.store), wanted, as_json=as_json))


async def _list(store: Store, config: CaptureConfig, *, as_json: bool) -> None:
    """Print the newest state in the store, if it can be trusted. Raises CaptureError."""
    await require_archive(store)
    trust = config.trust(await archive_name(store))
    picture, inventory, unreadable = await take_partial_inventory(store, trust=trust)
    if trust.encrypted_only:  # nothing is printed unless all of them are
        async for _ in inventory.scan():
            pass
    for problem in unreadable:
        print(f"capture: an entry can't be read: {problem}", file=sys.stderr)
    if as_json:
        await _print_json(inventory)
        return
    counts = await _print_table(inventory)
    numbers = f"manifest {picture.manifest.number}, table {picture.table.number}"
    adopted = f"{numbers}: {write_count(counts['block'], 'block')}, {write_count(counts['table'], 'table file')}"
    new = counts["new"]
    say(adopted + (f", and {write_count(new, 'new block')} that the next sweep of a node adopts" if new else ""))


def _parts(inventory: Inventory) -> list[AsyncGenerator[list[Stored], None]]:
    """Return the adopted blocks, the table's files, and the blocks that wait for a sweep."""
    return [inventory.scan_blocks(), inventory.scan_files(), inventory.scan_waiting()]


async def _print_table(inventory: Inventory) -> Counter[str]:
    """Print a line for each object, and return how many there are of each kind."""
    table, counts = GrowingTable(("path", "kind", ">messages", ">bytes", ">first", ">last")), Counter[str]()
    for kind, parts in zip(("block", "table", "new"), _parts(inventory), strict=True):
        async with aclosing(parts):
            async for part in parts:
                table.add(
                    (one.path, kind, *(f"{n:,}" for n in (one.count, one.bytes, one.first, one.last))) for one in part
                )
                counts[kind] += len(part)
    table.end()
    return counts


async def _print_json(inventory: Inventory) -> None:
    """Print one JSON document. If there are many objects it is printed while they are read."""
    few: dict[str, list[Stored]] = {"blocks": [], "table": [], "new": []}
    document: _Document | None = None
    for name, parts in zip(list(few), _parts(inventory), strict=True):
        async with aclosing(parts):
            async for part in parts:
                few[name] += part
                if document is not None or sum(map(len, few.values())) > FEW:
                    document = document or _Document(few)
                    for known, found in few.items():
                        document.add(known, found)
                        found.clear()
    if document is None:
        print_document({name: [*map(_as_dict, found)] for name, found in few.items()})
    else:
        document.end()


def _as_dict(one: Stored) -> dict[str, object]:
    return dict(msgspec.to_builtins({name: getattr(one, name) for name in Stored.__struct_fields__}))


class _Document:
    """A JSON object of lists that is printed as `print_document` prints it, one part of a list at a time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._left = list(names)
        self._name = ""
        self._is_empty = True

    def add(self, name: str, objects: Sequence[Stored]) -> None:
        """Print more elements of a list; an earlier list gets no more."""
        while objects and self._name != name:
            self._begin_next()
        for one in objects:
            text = json_text(_as_dict(one), indent=2).replace("\n", "\n    ")
            print("" if self._is_empty else ",", f"    {text}", sep="\n", end="")
            self._is_empty = False

    def end(self) -> None:
        """Print the end, and the lists that have no element."""
        while self._left:
            self._begin_next()
        print(self._end_of_list(), "}", sep="\n")

    def _begin_next(self) -> None:
        before = f"{self._end_of_list()},\n" if self._name else "{\n"
        self._name, self._is_empty = self._left.pop(0), True
        print(f'{before}  "{self._name}": [', end="")

    def _end_of_list(self) -> str:
        return "]" if self._is_empty else "\n  ]"

"""An archive with indexes of several levels, sets in pages of their own and pages of held sets, in few objects."""

import msgspec
from archived import Archived, store_block

from capture.archive import chain
from capture.archive.index import tree
from capture.archive.index.page import Entry, Page, decode, encode, page_path
from capture.archive.index.tree import Index, Sizes
from capture.archive.manifest import Manifest
from capture.archive.sequences import Sequences
from capture.archive.table import Table

SMALL = Sizes(leaf=1500, inner=1500, apart=80, inline=0)
KEYS, FAR = 9, 1 << 20


def sequences_of(number):
    """Return the sequences of block `number`: every second one has a large set, and one is in another chunk."""
    count = 40 if number % 2 else 3
    return [number + 1 + 200 * one for one in range(count)] + ([FAR + 7] if number == 5 else [])


WIDE = sorted({one for number in range(2 * KEYS) for one in sequences_of(number)})


async def wide_archive(monkeypatch, signer=None, folder=None):
    """Return an archive of the messages WIDE: KEYS table files, as many adopted blocks, and one of them twice."""
    monkeypatch.setattr(tree, "SIZES", SMALL)
    archived = Archived(signer, folder=folder)
    for number in range(KEYS):
        await store_block(archived.store, sequences_of(number), key=f"k{number}")
    await archived.sweep()
    await archived.compact()
    for number in range(KEYS, 2 * KEYS):
        await store_block(archived.store, sequences_of(number), key=f"k{number}")
    await store_block(archived.store, sequences_of(2 * KEYS - 1), key="again")
    await archived.sweep()
    return archived


async def pages_of(archived, kind):
    """Return the paths of an index's pages by what they are: "root", "inner", "leaf", "set" and "held"."""
    document = await chain.read(archived.store, archived.heads[kind].head, kind)
    index = Index(archived.store, kind.PAGES)
    found = {"root": [index.path(document.index.root)], "inner": [], "leaf": [], "set": [], "held": []}
    for total in document.index.streams.values():
        found["held"] += [index.path(name) for name in total.held.apart.values()]
    waiting = [document.index.root]
    while waiting:
        page = decode(await archived.store.get(page_path(kind.PAGES, name := waiting.pop())), index.path(name))
        waiting += [one.page for one in page.children]
        found["set"] += [index.path(one.apart) for one in page.entries if one.apart]
        if name != document.index.root:
            found["inner" if page.level else "leaf"].append(index.path(name))
    return found


async def recommit(archived, kind, index):
    """Commit the newest document again with another index, as somebody who can sign and commit."""
    head = archived.heads[kind].head
    document = await chain.read(archived.store, head, kind)
    changed = msgspec.structs.replace(document, index=index)
    return await chain.commit(archived.store, archived.pointer(kind), head, changed)


KINDS = (Manifest, Table)


def flip(data, at):
    changed = bytearray(data)
    changed[at % len(data)] ^= 1
    return bytes(changed)


async def another(archived, path):
    """The bytes of another page of the same index."""
    return await archived.store.get(
        next(one for one in await archived.paths(f"{path.rpartition('/')[0]}/") if one != path)
    )


async def foreign(archived, path):
    """The bytes of a page of another archive."""
    made = Page(level=0, token=1, number=1, entries=[as_entry("other")])
    return encode(made)[1]


def as_entry(stream, **fields):
    found = Sequences.from_range(1, 3)
    return Entry(
        path="blocks/x.parquet", stream=stream, key="", interval=0, first=1, last=3, count=3, bytes=9, sha256="00",
        format="parquet", sequences=found.to_bytes(), **fields,
    )  # fmt: skip


DAMAGES = {  # what is done to the bytes of a page, and what is said of it
    "missing": (None, "is missing from memory://"),
    "empty": (b"", "was changed: its SHA-256 is not its name"),
    "truncated": (lambda data: data[:-1], "was changed: its SHA-256 is not its name"),
    "a byte longer": (lambda data: data + b"\0", "was changed: its SHA-256 is not its name"),
    "a byte flipped at its beginning": (lambda data: flip(data, 0), "was changed: its SHA-256 is not its name"),
    "a byte flipped inside": (lambda data: flip(data, len(data) // 2), "was changed: its SHA-256 is not its name"),
    "a byte flipped at its end": (lambda data: flip(data, -1), "was changed: its SHA-256 is not its name"),
    "another page": (another, "was changed: its SHA-256 is not its name"),
    "a page of another archive": (foreign, "was changed: its SHA-256 is not its name"),
}

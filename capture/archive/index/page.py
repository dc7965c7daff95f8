"""A page of an index: an immutable object of the store, named by the SHA-256 of its bytes.

Leaves hold entries, sorted by `place_of`; pages above them hold a `Ref` for each child. So the hash of a root vouches
for all that is below it (a Merkle tree), and two versions of an index share the pages that did not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TypeVar

import cramjam
import msgspec

from capture.archive.index.version import Name, Place, Runs
from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Packed, Sequences
from capture.errors import DamagedIndexError, ManifestError
from natty.errors import UNREADABLE

FORMAT = 1
"""The format of pages that this version writes; it refuses a newer one by name."""
MOST_RUNS = 16
"""A `Ref` has the runs of sequences below it if there are no more of them."""
LEVEL = 3  # of zstd
LARGEST = 64 << 20
"""The most bytes of a page before compression: no reader decompresses more. Only a page of one set can be so large."""
DEEPEST = 12
"""A higher level is damage: a path has a key, so keys are short enough for ten children and more in each page."""


class Entry(Stored, frozen=True, kw_only=True):
    """The record of an object in a leaf. If `apart` names a page, this has the sequences, and `sequences` is empty."""

    apart: Name = b""


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says about a child: its name, its range of places, and sums of all entries below.

    `stored` is the number of bytes of the objects. `first` and `last` are the lowest and highest sequence, `min_ns` and
    `max_ns` the times of the earliest and latest message (0 and MAXIMUM if an entry does not have them). `size` is the
    child's size before compression, estimated. `runs` are the runs of all sequences below, of one stream; empty if
    there are more than MOST_RUNS. `level` is the child's, and `apart` says whether sets below have pages of their own.
    """

    page: bytes
    low: Place
    high: Place
    entries: int
    messages: int
    stored: int
    first: int
    last: int
    min_ns: int
    max_ns: int
    size: int
    runs: Runs
    level: int
    apart: bool


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf (level 0) with entries, or a page above with children, written by the commit `number` of term `token`.

    The two numbers make the bytes of each commit's pages different, so that no page is written again under a name that
    a deposed leader may still delete.
    """

    format: int = FORMAT
    level: int
    token: int
    number: int
    entries: list[Entry] = []
    children: list[Ref] = []

    @property
    def items(self) -> Sequence[Entry | Ref]:
        """The entries or the children."""
        return self.children if self.level else self.entries


class SetPage(msgspec.Struct, frozen=True, kw_only=True):
    """A set of sequences, as `Stored.sequences` has it; the numbers as in `Page`.

    `of` says whose set it is, so that no two owners share a page: it goes when its owner goes.
    """

    format: int = FORMAT
    token: int
    number: int
    of: str
    sequences: Packed


Item = TypeVar("Item", Entry, Ref)
Kind = TypeVar("Kind", Page, SetPage)


class _Format(msgspec.Struct):
    format: int = FORMAT


_encode = msgspec.msgpack.Encoder().encode
_decode_format = msgspec.msgpack.Decoder(_Format).decode
_decode_page = msgspec.msgpack.Decoder(Page).decode
_decode_set = msgspec.msgpack.Decoder(SetPage).decode


def place_of(one: Stored) -> Place:
    """Return where an entry is sorted."""
    return one.stream, one.interval, one.key, one.first, one.path


def page_path(folder: str, name: Name) -> str:
    """Return the path of a page, by its hash."""
    return f"{folder}{name.hex()}"


def make_damage(path: str, what: str) -> DamagedIndexError:
    """Return the error for a page that is not what it was: it says what to do."""
    return DamagedIndexError(
        f"{path} {what}. The archive's index is damaged, its blocks and table files are not affected:"
        f" restore {path} from a copy of the store, see docs/moving.md"
    )


def encode(page: Page | SetPage) -> tuple[bytes, bytes]:
    """Return a page's name and its bytes. ManifestError if it is larger than readers accept."""
    plain = _encode(page)
    if len(plain) > LARGEST:
        raise ManifestError(f"a page of the index would have {len(plain):,} bytes; at most {LARGEST:,} are read")
    data = bytes(cramjam.zstd.compress(plain, level=LEVEL))
    return sha256(data).digest(), data


def decode(data: bytes, path: str) -> Page:
    """Return the page at this path. DamagedIndexError if it was changed; ManifestError if it is unreadable."""
    page = _decode(data, path, _decode_page)
    if bool(page.entries) == bool(page.children) or bool(page.level) != bool(page.children):
        raise ManifestError(f"{path} is damaged: a leaf has entries, and another page children")
    if not 0 <= page.level <= DEEPEST:
        raise ManifestError(f"{path} is damaged: it is at level {page.level}, and the highest possible is {DEEPEST}")
    return page


def decode_set(data: bytes, path: str) -> SetPage:
    """Return the page of a set. ManifestError as `decode`."""
    return _decode(data, path, _decode_set)


def _decode(data: bytes, path: str, read: Callable[[bytearray], Kind]) -> Kind:
    if sha256(data).hexdigest() != path.rpartition("/")[2]:
        raise make_damage(path, "was changed: its SHA-256 is not its name")
    try:
        plain = _decompress(data)
        try:
            page = read(plain)
        except msgspec.ValidationError:  # of a newer format, perhaps
            if _decode_format(plain).format <= FORMAT:
                raise
        else:
            if page.format <= FORMAT:
                return page
        found = _decode_format(plain).format
    except (*UNREADABLE, cramjam.DecompressionError) as error:
        raise ManifestError(f"{path} is damaged: {error}") from error
    raise ManifestError(f"{path} has format {found}; this version reads up to {FORMAT}: use the version that wrote it")


def _decompress(data: bytes) -> bytearray:
    """Return the bytes of the Zstandard frame, which says how many they are. ValueError if it does not, or too many."""
    found = _frame_size(data)
    if found > LARGEST:
        raise ValueError(f"{found:,} bytes are inside of it, and a page has at most {LARGEST:,}")
    plain = bytearray(found)
    if cramjam.zstd.decompress_into(data, plain) != found:
        raise ValueError(f"it does not have the {found:,} bytes that it says")
    return plain


def _frame_size(data: bytes) -> int:
    """Return the content size in the header of a Zstandard frame (RFC 8878, section 3.1.1.1). ValueError without it."""
    if data[:4] != b"\x28\xb5\x2f\xfd" or len(data) < 6:
        raise ValueError("it is not compressed by Zstandard")
    single, width = data[4] >> 5 & 1, 1 << (data[4] >> 6)
    if width == 1 and not single:
        raise ValueError("its header does not say how many bytes are inside of it")
    at = 6 - single + (0, 1, 2, 4)[data[4] & 3]
    size = int.from_bytes(data[at : at + width], "little")
    return size + 256 if width == 2 else size


def size_of(item: Entry | Ref) -> int:
    """Return about how many bytes an item takes in a page before compression."""
    if isinstance(item, Ref):
        return 330 + 2 * (len(item.low[2]) + len(item.high[2]) + len(item.low[4])) + 20 * len(item.runs)
    return 400 + len(item.path) + len(item.key) + len(item.sequences)


def ref_of(name: bytes, page: Page) -> Ref:
    """Return what a parent says about a page."""
    refs = page.children or [_as_ref(one) for one in page.entries]
    low, high = refs[0].low, refs[-1].high
    return Ref(
        page=name,
        low=low,
        high=high,
        entries=sum(one.entries for one in refs),
        messages=sum(one.messages for one in refs),
        stored=sum(one.stored for one in refs),
        first=min(one.first for one in refs),
        last=max(one.last for one in refs),
        min_ns=min(one.min_ns for one in refs),
        max_ns=max(one.max_ns for one in refs),
        size=sum(map(size_of, page.items)),
        runs=join_runs(map(_runs_of, page.items)) if low[0] == high[0] else [],
        level=page.level,
        apart=any(one.apart for one in refs),
    )


def _as_ref(one: Entry) -> Ref:
    place = place_of(one)
    return Ref(
        page=b"", low=place, high=place, entries=1, messages=one.count, stored=one.bytes, first=one.first,
        last=one.last, min_ns=one.min_ns, max_ns=one.max_ns or MAXIMUM, size=0, runs=[],
        level=0, apart=bool(one.apart),
    )  # fmt: skip


def _runs_of(one: Entry | Ref) -> Runs:
    if isinstance(one, Ref):
        return one.runs
    if one.apart or len(one.sequences) > 16 * MOST_RUNS:
        return []
    found = Sequences.from_bytes(one.sequences).first_runs(MOST_RUNS + 1)
    return found if len(found) <= MOST_RUNS else []


def join_runs(parts: Iterable[Runs]) -> Runs:
    """Return the runs of several sets together; none if a part has none, or there are more than MOST_RUNS."""
    listed: list[Runs] = []
    for runs in parts:
        if not runs:
            return []
        listed.append(runs)
    joined: Runs = []
    for first, last in sorted(run for runs in listed for run in runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined if len(joined) <= MOST_RUNS else []

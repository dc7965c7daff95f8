"""A chain of immutable documents in the store; a fenced head names the committed one.

Each head has one writer: the leader of its election. A term begins by committing the last document again, under its
own token. Documents that a deposed leader still writes are then older than the committed one, and are not adopted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec

from capture.archive.signing import Signer, split, vouch
from capture.errors import AlreadyStoredError, ManifestError, NewerFormatError, NotStoredError
from capture.stores.contract import REQUESTS_AT_ONCE, Listing, Store, is_path
from capture.stores.deletion import delete_all
from natty.errors import UNREADABLE
from natty.wire.background import map_concurrently

KEPT = 20
"""The number of documents of a chain that are kept, whatever their age."""

_NAME = re.compile(r"(\d{10,})-(\d+)(?:-(\d+))?\.json")  # the third part is from format 1: several attempts of a term

log = logging.getLogger("capture.chain")


class Retired(msgspec.Struct, frozen=True):
    """An object whose rows the table holds in another file: deleted a grace time after `since` (Unix seconds)."""

    path: str
    since: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One state of what a chain records. It is valid if the head names it, or a later document whose parent it is.

    `number` grows by 1 along the chain. `token` is the token of the term that wrote the document, `leader` its node,
    and `created` the time (Unix seconds, by the node's clock). `retired` are objects that readers of an earlier
    document may still need. FOLDER is the chain's folder, FORMAT the format that this version writes.
    """

    FOLDER: ClassVar[str]
    FORMAT: ClassVar[int]

    format: int = 0
    number: int = 0
    token: int = 0
    leader: str = ""
    created: float = 0.0
    parent: str = ""
    parent_sha256: str = ""
    retired: list[Retired] = msgspec.field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError if a record in it is damaged."""

    def at_its_head(self, now: float) -> Self:
        """Return the document with what it replaced counted from `now` on: until then readers had an earlier one."""
        return msgspec.structs.replace(self, retired=[Retired(one.path, now) for one in self.retired])


class Head(msgspec.Struct, frozen=True):
    """The committed document's number, path, term (`token`) and the SHA-256 of its bytes."""

    number: int
    token: int
    path: str
    sha256: str


class HeadPointer(Protocol):
    """The authority: a fenced entry outside the store, in NATS in production. One instance belongs to one term.

    `token` is the term's fencing token; its `signer`, if any, signs what the term commits.
    """

    token: int
    signer: Signer | None

    def check(self) -> None:
        """Raise FencedError if this term is over, as far as its holder knows. Call it before an irreversible step."""
        ...

    async def read(self) -> Head | None:
        """Return the committed head, and claim it: no earlier term can commit any more. None before the first commit.

        Raises FencedError if a later term has begun.
        """
        ...

    async def commit(self, head: Head) -> None:
        """Make `head` the committed one, atomically. FencedError if a later term has begun; nothing is changed then."""
        ...


HeadReader = Callable[[], Awaitable[Head | None]]
"""Returns the committed head to a reader; the result may be outdated."""

Check = Callable[[str, bytes], None]
"""Checks the path and the bytes of a document before they are used."""

NO_PAGES: Mapping[str, bytes] = {}

Kind = TypeVar("Kind", bound=Document)
Record = TypeVar("Record")


class _Format(msgspec.Struct):
    format: int = 1


_decode_format = msgspec.json.Decoder(_Format).decode


def decode(data: bytes, path: str, kind: type[Kind]) -> Kind:
    """Return the document. ManifestError if it is damaged, has a newer format, or belongs at another path."""
    newest = kind.FORMAT
    found = decode_known(data, path, kind, lambda encoded: _decode_format(encoded).format, newest)
    try:
        found.check()
    except ValueError as error:
        raise ManifestError(f"{path} is damaged: {error}") from error
    return _check_place(found, path)


def decode_known(data: bytes, path: str, kind: type[Record], format_of: Callable[[bytes], int], newest: int) -> Record:
    """Return the decoded JSON; `format_of` reads its format. ManifestError if it is damaged; NewerFormatError."""
    try:
        found = format_of(data)
        if found <= newest:
            return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise ManifestError(f"{path} is damaged: {error}") from error
    known = f"this version reads up to {newest}"
    raise NewerFormatError(f"{path} has format {found}; {known}: use the version that wrote it")


def _check_place(document: Kind, path: str) -> Kind:
    parts = document_parts(type(document), path)
    if parts is not None and parts[:2] != (document.number, document.token):
        raise ManifestError(
            f"{path} holds document {document.number} of term {document.token}: it is in another document's place"
        )
    return document


async def read(store: Store, head: Head | None, kind: type[Kind], *, check: Check | None = None) -> Kind:
    """Return the document that the head names, or an empty one. ManifestError if it is missing or was changed.

    `check` gets its path and its bytes, and raises if it rejects them.
    """
    if head is None:
        return kind()
    data = await fetch(store, head)
    if check is not None:
        check(head.path, data)
    return decode(data, head.path, kind)


async def fetch(store: Store, head: Head) -> bytes:
    """Return the bytes of the document that the head names. ManifestError if it is missing or was changed."""
    try:
        data = await store.get(head.path)
    except NotStoredError as error:
        raise ManifestError(
            f"the head names {head.path}, which is not in {store.url}: is it the right store?"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != head.sha256:
        raise ManifestError(f"{head.path} was changed: its SHA-256 is {found[:16]}…, the head says {head.sha256[:16]}…")
    return data


async def latest_offline(store: Store, kind: type[Document]) -> Head | None:
    """Return the head of the document with the highest (number, token) in the store, for readers without the pointer.

    The document may be one commit ahead of the head; its records of stored objects are still correct.
    """
    found = await _find_newest(store, kind)
    if found is None:
        return None
    (number, token, _), path = found
    return Head(number, token, path, hashlib.sha256(await store.get(path)).hexdigest())


async def _find_newest(store: Store, kind: type[Document]) -> tuple[tuple[int, int, int], str] | None:
    listed = [one.path for one in await store.list(kind.FOLDER)]
    return max(((parts, path) for path in listed if (parts := document_parts(kind, path))), default=None)


async def current(
    store: Store,
    pointer: HeadPointer,
    kind: type[Kind],
    now: float,
    first: Callable[[], Awaitable[Kind]] | None = None,
    renew: Callable[[Kind], Awaitable[tuple[Kind, Mapping[str, bytes]]]] | None = None,
) -> tuple[Head, Kind]:
    """Return the committed head and its document, the base of every change. FencedError if the term is over.

    SignatureError if the archive is signed and the term can't sign, or a document is not signed by one of its keys.

    A term's first call commits the document again under its own token, or the result of `first` if there is none;
    `renew` brings a document of an earlier format into the present one, with the pages to store before it. The
    store may hold a later document than the head names: the last term died before its commit, or the head lost its last
    writes. Then the later document is used: a head that went back must never make stored objects look like leftovers.
    Its retired objects count as retired from `now` on, since readers were sent to the earlier document until now.
    """
    head, newest = await pointer.read(), await _find_newest(store, kind)
    ahead = newest is not None and newest[0][0] > (head.number if head else 0)
    if head is not None and head.token == pointer.token and not ahead:
        return head, await _read_vouched(store, pointer, head, kind, unsigned_too=True)
    known = head
    if ahead:
        head = await latest_offline(store, kind)
        log.info("%s is ahead of the head: it is committed now", head and head.path, extra={"action": "recover_head"})
    if head is None:
        document = kind() if first is None else await first()
    else:
        unsigned_too = not ahead or await _is_unsigned(store, pointer, known)
        document = await _read_vouched(store, pointer, head, kind, unsigned_too=unsigned_too)
    if ahead:
        document = document.at_its_head(now)
    if head is not None and document.format < kind.FORMAT:
        log.info(
            "%s has format %d and is upgraded to %d, which earlier versions can't read",
            head.path,
            document.format,
            kind.FORMAT,
            extra={"action": "upgrade"},
        )
    document, pages = (document, NO_PAGES) if renew is None else await renew(document)
    head = await commit(store, pointer, head, document, pages)
    return head, await read(store, head, kind)


async def _is_unsigned(store: Store, pointer: HeadPointer, known: Head | None) -> bool:
    """Return whether signing has not begun: neither for this term, nor in the document that the head names."""
    return pointer.signer is None or (known is not None and split(await fetch(store, known))[1] is None)


async def _read_vouched(
    store: Store, pointer: HeadPointer, head: Head, kind: type[Kind], *, unsigned_too: bool
) -> Kind:
    """Return the document that the head names, if this term may continue from it: see `vouch`."""
    data = await fetch(store, head)
    vouch(pointer.signer, head.path, data, unsigned_too=unsigned_too)
    return decode(data, head.path, kind)


def seal(document: Kind, token: int, previous: Head | None) -> Kind:
    """Return the document as the successor of `previous` in a term: with its format, number, token and parent."""
    return msgspec.structs.replace(
        document,
        format=document.FORMAT,
        number=(previous.number if previous else 0) + 1,
        token=token,
        parent=previous.path if previous else "",
        parent_sha256=previous.sha256 if previous else "",
    )


async def commit(
    store: Store,
    pointer: HeadPointer,
    previous: Head | None,
    document: Document,
    pages: Mapping[str, bytes] = NO_PAGES,
) -> Head:
    """Write the document as the successor of `previous`, then make the head name it: durable, then visible.

    Sets format, number, token and parent. `pages` are the other objects of this version, by path. They are stored
    first: a document without its head is taken for the newest one if its leader dies now. Each is named by its content,
    so one that exists is the same. FencedError if another term has begun.
    """
    sealed = seal(document, pointer.token, previous)
    data = msgspec.json.encode(sealed)
    path = document_path(type(document), sealed.number, sealed.token)
    if pointer.signer is not None:
        data = pointer.signer.sign(path, data)

    async def put(page: tuple[str, bytes]) -> None:
        with contextlib.suppress(AlreadyStoredError):
            await store.put(*page)

    await map_concurrently(pages.items(), put, at_once=REQUESTS_AT_ONCE)
    await store.put(path, data)
    head = Head(sealed.number, sealed.token, path, hashlib.sha256(data).hexdigest())
    await pointer.commit(head)
    return head


async def delete(store: Store, pointer: HeadPointer, paths: Iterable[str]) -> None:
    """Delete these objects, as long as the term lasts: it is checked before each request. FencedError if it is over.

    Names that can't be those of objects of an archive are left out and logged: another program has made them.
    """
    known, strange = list[str](), list[str]()
    for path in paths:
        (known if is_path(path) else strange).append(path)
    if strange:
        log.warning("%d files that capture can't have stored are left in %s: %r…", len(strange), store.url, strange[0])
    await delete_all(store, known, check=pointer.check)


def old_documents(document: Document, objects: Listing, before: float) -> list[str]:
    """Return the paths of older documents to delete: written before this time, and not among the last KEPT."""
    return [
        one.path
        for one in objects
        if (parts := document_parts(type(document), one.path))
        and parts[0] <= document.number - KEPT
        and one.modified < before
    ]


def document_path(kind: type[Document], number: int, token: int) -> str:
    """Return the path of a document."""
    return f"{kind.FOLDER}{number:010d}-{token}.json"


def document_parts(kind: type[Document], path: str) -> tuple[int, int, int] | None:
    """Return (number, token, attempt) of a document's path; None for any other path."""
    found = _NAME.fullmatch(path.removeprefix(kind.FOLDER)) if path.startswith(kind.FOLDER) else None
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None

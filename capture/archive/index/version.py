"""A version of an index as a document names it: the root of the tree, and what it holds of each stream."""

from __future__ import annotations

from typing import Annotated

import msgspec

from capture.archive.sequences import MAXIMUM

Name = bytes
"""The name of a page: the SHA-256 of its bytes."""
Place = tuple[str, int, str, int, str]
"""Where an entry is sorted: its stream, interval, key, first sequence and path."""
Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAXIMUM)]
Runs = list[tuple[Sequence, Sequence]]
"""Runs of sequences, (first, last), in order and not adjacent."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An exact set of sequences in chunks of `held.CHUNK`: the `runs` of chunks without a page, and the others' pages.

    `count` is the number of sequences; `apart` has the name of a chunk's page by the chunk's number.
    """

    count: int = 0
    runs: Runs = []
    apart: dict[int, Name] = {}


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a stream: how many, their messages and bytes, and the sequences that they hold, each once.

    `twice` are the sequences that at least two of the objects hold (`Sequences.to_text`). `formats` counts the objects
    by format.
    """

    objects: int = 0
    messages: int = 0
    bytes: int = 0
    held: Held = Held()
    twice: str = ""
    formats: dict[str, int] = {}


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """An index at one moment: the name of its root (b"": it is empty), and the totals by stream.

    `leaf` are the bytes of a root that is a small leaf: a small archive needs no pages in the store.
    """

    root: Name = b""
    leaf: bytes = b""
    streams: dict[str, Total] = {}

    @property
    def objects(self) -> int:
        """The number of entries."""
        return sum(one.objects for one in self.streams.values())

    @property
    def messages(self) -> int:
        """The number of messages in all objects; one that is in two objects counts twice."""
        return sum(one.messages for one in self.streams.values())

    @property
    def stored_bytes(self) -> int:
        """The bytes of all objects."""
        return sum(one.bytes for one in self.streams.values())

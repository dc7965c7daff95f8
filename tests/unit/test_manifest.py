import hashlib
from datetime import UTC, datetime
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import Fenced, ManifestError
from capture.manifest import (
    Head,
    Manifest,
    Retired,
    Stored,
    block_path,
    commit_manifest,
    current,
    decode_entry,
    decode_manifest,
    encode,
    entry_block,
    entry_path,
    interval_folder,
    latest_offline,
    manifest_parts,
    manifest_path,
    quote_key,
    read_manifest,
    table_path,
)
from capture.sequences import Sequences
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead

NOVEMBER = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())


def stored(path="blocks/x/one.parquet", **changes):
    facts = {
        "path": path,
        "stream": "FLIGHTS",
        "key": "EWR",
        "interval": NOVEMBER,
        "first": 1,
        "last": 9,
        "count": 9,
        "bytes": 100,
        "sha256": "ab" * 32,
        "format": "parquet",
        "sequences": Sequences.from_range(1, 9).to_text(),
    }
    return Stored(**(facts | changes))


def test_a_manifest_survives_its_encoding():
    manifest = Manifest(
        number=7, token=3, leader="a", created=5.5, blocks=[stored()], table=[stored("t")], retired=[Retired("r", 1.5)]
    )
    assert decode_manifest(encode(manifest), "m") == manifest
    assert decode_entry(encode(stored(node="n", stored_ns=8)), "e") == stored(node="n", stored_ns=8)


@pytest.mark.parametrize("data", [b"", b"{", b'{"number": "x"}', b"\xff\xfe", b"[]"])
def test_a_damaged_manifest_is_named(data):
    with pytest.raises(ManifestError, match="_manifest/7 is damaged"):
        decode_manifest(data, "_manifest/7")


def test_a_newer_format_is_refused_by_name_even_if_nothing_else_of_it_is_known():
    with pytest.raises(ManifestError, match="m has format 2; this version reads up to 1"):
        decode_manifest(b'{"format": 2, "blocks": "elsewhere"}', "m")
    with pytest.raises(ManifestError, match="e has format 9"):
        decode_entry(b'{"version": 9}', "e")


def test_fields_that_a_later_version_adds_do_not_disturb():
    data = msgspec.json.encode(msgspec.to_builtins(stored()) | {"colour": "red"})
    assert decode_entry(data, "e") == stored()


@given(st.text(st.characters(codec="utf-8"), max_size=13))
def test_a_key_survives_its_quoting_and_needs_no_more_than_plain_letters(key):
    quoted = quote_key(key)
    assert unquote(quoted, "utf-8", "surrogateescape") == key
    assert "/" not in quoted
    assert quoted.isascii()


def test_keys_are_quoted_like_this():
    assert quote_key("EWR_a-b.c") == "EWR_a-b.c"
    assert quote_key("a/b ü=~") == "a%2Fb%20%C3%BC%3D%7E"
    assert quote_key("_undecodable") == "_undecodable"


def test_a_key_that_is_too_long_for_a_file_system_is_shortened_and_stays_its_own():
    one, two = quote_key("ü" * 500 + "1"), quote_key("ü" * 500 + "2")
    assert one != two
    assert len(one) <= 200
    assert "~" in one  # quoted keys have no other: a reader sees that it is shortened


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (86_400, "date=2026-11-21"),
        (3_600, "date=2026-11-21/hour=03"),
        (900, "date=2026-11-21/hour=03/minute=00"),
        (10, "date=2026-11-21/hour=03/minute=00/second=00"),
    ],
)
def test_an_interval_is_a_folder_as_fine_as_it_is_long(seconds, expected):
    assert interval_folder(NOVEMBER, seconds) == expected


def test_paths_say_what_they_hold():
    block = block_path("FLIGHTS", "a/b", NOVEMBER, 3600, 1, 9, 9, "ab" * 32, ".parquet")
    assert block == "blocks/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/FLIGHTS-1-9-9-abababab.parquet"
    assert (
        entry_path(block)
        == "_entries/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/FLIGHTS-1-9-9-abababab.parquet.json"
    )
    assert entry_block(entry_path(block)) == block
    table = table_path(block, 12, "00ff")
    assert table == "table/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/c-12-00ff.parquet"
    assert table_path(table, 13, "01") == "table/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/c-13-01.parquet"


def test_a_manifests_path_has_its_number_its_term_and_its_attempt():
    assert manifest_path(7, 12) == "_manifest/0000000007-12.json"
    assert manifest_parts(manifest_path(7, 12)) == (7, 12, 0)
    assert manifest_parts(manifest_path(7, 12, 3)) == (7, 12, 3)
    assert manifest_parts("_manifest/readme.txt") is None


async def test_a_commit_numbers_the_manifest_and_names_its_parent():
    store, pointer = MemoryStore(), MemoryHead(5)
    first = await commit_manifest(store, pointer, None, Manifest(blocks=[stored()]))
    second = await commit_manifest(store, pointer, first, Manifest(leader="a"))
    assert await pointer.read() == second == Head(2, 5, manifest_path(2, 5), second.sha256)
    manifest = await read_manifest(store, second)
    assert (manifest.number, manifest.token, manifest.leader) == (2, 5, "a")
    assert (manifest.parent, manifest.parent_sha256) == (first.path, first.sha256)


async def test_without_a_head_the_archive_is_empty():
    assert await read_manifest(MemoryStore(), None) == Manifest()
    assert await latest_offline(MemoryStore()) is None
    assert await current(MemoryStore(), MemoryHead()) == (None, Manifest())


async def test_a_manifest_that_was_changed_or_is_missing_is_refused():
    store = MemoryStore()
    head = await commit_manifest(store, MemoryHead(), None, Manifest())
    await store.put(head.path, b"{}", if_absent=False)
    with pytest.raises(ManifestError, match="was changed"):
        await read_manifest(store, head)
    await store.delete(head.path)
    with pytest.raises(ManifestError, match="is it the right store"):
        await read_manifest(store, head)


async def test_a_deposed_leader_is_fenced_and_the_head_stays():
    store, state = MemoryStore(), HeadState()
    old, new = MemoryHead(1, state), MemoryHead(2, state)
    head = await commit_manifest(store, new, None, Manifest(leader="new"))
    with pytest.raises(Fenced, match="term 1 is over"):
        await commit_manifest(store, old, head, Manifest(leader="old"))
    assert await new.read() == head


async def test_of_two_commits_on_the_same_head_the_second_is_fenced():
    store, state = MemoryStore(), HeadState()
    one, other = MemoryHead(1, state), MemoryHead(1, state)
    head = await commit_manifest(store, one, None, Manifest(leader="one"))
    with pytest.raises(Fenced, match="came too late"):
        await commit_manifest(store, other, None, Manifest(leader="other"))
    assert await other.read() == head
    assert (await read_manifest(store, head)).leader == "one"


class Interrupted(MemoryHead):
    """A head pointer whose next commit gets no answer."""

    interrupted = True

    async def commit(self, head):
        if self.interrupted:
            self.interrupted = False
            raise TimeoutError
        await super().commit(head)


async def test_a_commit_after_one_without_an_answer_never_changes_the_manifest_it_wrote():
    store, pointer = MemoryStore(), Interrupted()
    with pytest.raises(TimeoutError):
        await commit_manifest(store, pointer, None, Manifest(leader="lost"))
    before = await store.get(manifest_path(1, 1))
    head = await commit_manifest(store, pointer, None, Manifest(leader="second"))
    assert head.path == manifest_path(1, 1, 1)
    assert await store.get(manifest_path(1, 1)) == before


async def test_a_manifest_ahead_of_the_head_is_committed_before_anything_else():
    store, state = MemoryStore(), HeadState()
    head = None
    for number in range(1, 5):
        head = await commit_manifest(store, MemoryHead(1, state), head, Manifest(created=float(number)))
    for lost in (
        None,
        Head(2, 1, manifest_path(2, 1), hashlib.sha256(await store.get(manifest_path(2, 1))).hexdigest()),
    ):
        state = HeadState(head=lost)
        recovered, manifest = await current(store, MemoryHead(2, state))
        assert manifest.created == 4.0
        assert recovered == state.head
        assert recovered.number > 4
        assert manifest.number == recovered.number


async def test_a_commit_that_somebody_carried_through_meanwhile_is_a_commit():
    store, state = MemoryStore(), HeadState()

    class Overtaken(MemoryHead):
        async def commit(self, head):
            await current(store, MemoryHead(1, state))  # sees the manifest, and the head below it
            await super().commit(head)

    head = await commit_manifest(store, Overtaken(1, state), None, Manifest(leader="slow"))
    assert head == state.head
    assert head.number == 2
    assert (await read_manifest(store, head)).leader == "slow"


async def test_readers_without_the_head_find_the_latest_manifest():
    store, state = MemoryStore(), HeadState()
    first = await commit_manifest(store, MemoryHead(1, state), None, Manifest())
    second = await commit_manifest(store, MemoryHead(12, state), first, Manifest())
    with pytest.raises(Fenced):
        await commit_manifest(store, MemoryHead(9, state), first, Manifest(leader="deposed"))
    assert await latest_offline(store) == second


def test_a_memory_head_shows_its_state():
    assert repr(MemoryHead(3)) == "MemoryHead(token=3, head=None)"

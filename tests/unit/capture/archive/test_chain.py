import hashlib

import msgspec
import pytest
from failing import Failing

from capture.archive import chain
from capture.archive.chain import (
    Head,
    Retired,
    commit,
    current,
    decode,
    document_parts,
    document_path,
    latest_offline,
    old_documents,
)
from capture.archive.manifest import Manifest
from capture.archive.table import Table
from capture.errors import FencedError, ManifestError, StoreError
from capture.stores import MemoryStore, ObjectInfo
from capture.testing import HeadState, MemoryHead

GONE = Retired("blocks/x", 1.5)
NOW = 1e6


def named(leader):
    return Manifest(leader=leader)


@pytest.mark.parametrize("document", [Manifest(number=7, retired=[GONE], of_table=3), Table(token=3, consumed=["b"])])
def test_a_document_survives_its_encoding(document):
    assert decode(msgspec.json.encode(document), "m", type(document)) == document


@pytest.mark.parametrize("data", [b"", b"{", b'{"number": "x"}', b"\xff\xfe", b"[]"])
def test_a_damaged_document_is_named(data):
    with pytest.raises(ManifestError, match="_manifest/7 is damaged"):
        decode(data, "_manifest/7", Manifest)


def test_a_newer_format_is_refused_by_name_even_if_nothing_else_of_it_is_known():
    with pytest.raises(ManifestError, match="m has format 4; this version reads up to 3"):
        decode(b'{"format": 4, "blocks": "elsewhere"}', "m", Manifest)
    with pytest.raises(ManifestError, match="t has format 4; this version reads up to 3"):
        decode(b'{"format": 4}', "t", Table)


def test_a_documents_path_has_its_number_and_its_term():
    assert document_path(Manifest, 7, 12) == "_manifest/0000000007-12.json"
    assert document_parts(Manifest, document_path(Manifest, 7, 12)) == (7, 12, 0)
    assert document_parts(Manifest, "_manifest/0000000007-12-3.json") == (7, 12, 3)  # format 1 had them
    assert document_parts(Manifest, document_path(Table, 7, 12)) is None
    assert document_parts(Manifest, "_manifest/readme.txt") is None


def test_old_documents_may_go_but_for_the_last_twenty():
    objects = [ObjectInfo(document_path(Manifest, number, 1), 1, 100.0) for number in range(1, 31)]
    assert old_documents(Manifest(number=30), objects, 100.0) == []
    assert old_documents(Manifest(number=30), objects, 101.0) == [document_path(Manifest, n, 1) for n in range(1, 11)]
    assert old_documents(Table(number=30), objects, 101.0) == []


async def test_a_commit_numbers_the_document_and_names_its_parent():
    store, pointer = MemoryStore(), MemoryHead(5)
    first = await commit(store, pointer, None, Manifest(retired=[GONE]))
    second = await commit(store, pointer, first, named("a"))
    assert await pointer.read() == second == Head(2, 5, document_path(Manifest, 2, 5), second.sha256)
    manifest = await chain.read(store, second, Manifest)
    assert (manifest.format, manifest.number, manifest.token, manifest.leader) == (3, 2, 5, "a")
    assert (manifest.parent, manifest.parent_sha256) == (first.path, first.sha256)


async def test_without_a_head_there_is_nothing():
    assert await chain.read(MemoryStore(), None, Manifest) == Manifest()
    assert await latest_offline(MemoryStore(), Manifest) is None


async def test_a_document_that_was_changed_or_is_missing_is_refused():
    store = MemoryStore()
    head = await commit(store, MemoryHead(), None, Manifest())
    await store.put(head.path, b"{}", if_absent=False)
    with pytest.raises(ManifestError, match="was changed"):
        await chain.read(store, head, Manifest)
    await store.delete(head.path)
    with pytest.raises(ManifestError, match="is it the right store"):
        await chain.read(store, head, Manifest)


async def test_a_deposed_leader_is_fenced_and_the_head_stays():
    store, state = MemoryStore(), HeadState()
    old, new = MemoryHead(1, state), MemoryHead(2, state)
    head = await commit(store, new, None, named("new"))
    with pytest.raises(FencedError, match="term 1 is over"):
        await commit(store, old, head, named("old"))
    assert await new.read() == head


async def test_a_term_begins_by_committing_what_it_finds_under_its_own_token_and_does_so_once():
    store, state = MemoryStore(), HeadState()
    first = await commit(store, MemoryHead(1, state), None, Manifest(leader="a", retired=[GONE]))
    new = MemoryHead(2, state)
    head, manifest = await current(store, new, Manifest, NOW)
    assert (head.number, head.token) == (first.number + 1, 2)
    assert (manifest.leader, manifest.number, manifest.token, manifest.retired) == ("a", 2, 2, [GONE])
    assert await current(store, new, Manifest, NOW) == (head, manifest)


async def test_an_archive_without_a_document_begins_with_the_one_that_is_given():
    store, state = MemoryStore(), HeadState()

    async def first():
        return Table(consumed=["a"])

    head, table = await current(store, MemoryHead(1, state), Table, NOW, first)
    assert (head.number, table.consumed) == (1, ["a"])
    assert (await current(store, MemoryHead(2, state), Table, NOW))[1].consumed == ["a"]


async def test_what_a_deposed_leader_writes_after_the_take_over_is_taken_up_by_nobody():
    """Its successor is idle, so that the head has moved by the take-over alone."""
    store, state = MemoryStore(), HeadState()
    old = MemoryHead(1, state)
    head, _ = await current(store, old, Manifest, NOW)
    await current(store, MemoryHead(2, state), Manifest, NOW)
    with pytest.raises(FencedError):
        await commit(store, old, head, named("deposed"))
    assert document_path(Manifest, 2, 1) in {one.path for one in await store.list()}
    for token in (2, 3):
        assert (await current(store, MemoryHead(token, state), Manifest, NOW))[1].leader == ""
    assert (await chain.read(store, await latest_offline(store, Manifest), Manifest)).leader == ""


class Interrupted(MemoryHead):
    """A head pointer whose next commit gets no answer, and does not arrive."""

    interrupted = False

    async def commit(self, head):
        if self.interrupted:
            self.interrupted = False
            raise TimeoutError
        await super().commit(head)


@pytest.mark.parametrize("token", [1, 2])
async def test_a_document_whose_commit_failed_is_committed_by_the_next_call_of_this_leader_or_the_next(token):
    store, state = MemoryStore(), HeadState()
    pointer = Interrupted(1, state)
    head, _ = await current(store, pointer, Manifest, NOW)
    pointer.interrupted = True
    with pytest.raises(TimeoutError):
        await commit(store, pointer, head, Manifest(leader="lost", retired=[GONE]))
    recovered, manifest = await current(store, MemoryHead(token, state), Manifest, NOW)
    assert manifest.leader == "lost"
    assert recovered.number == 3
    assert manifest.retired == [Retired(GONE.path, NOW)]  # readers were told of its predecessor up to now


async def test_a_document_ahead_of_the_head_is_committed_before_anything_else():
    store, state = MemoryStore(), HeadState()
    head = None
    for number in range(1, 5):
        head = await commit(store, MemoryHead(1, state), head, Manifest(created=float(number)))
    path = document_path(Manifest, 2, 1)
    for lost in (None, Head(2, 1, path, hashlib.sha256(await store.get(path)).hexdigest())):
        for token in (1, 2):
            state = HeadState(head=lost)
            recovered, manifest = await current(store, MemoryHead(token, state), Manifest, NOW)
            assert manifest.created == 4.0
            assert recovered == state.head
            assert manifest.number == recovered.number > 4


@pytest.mark.parametrize("dies_after", range(4))
async def test_a_leader_that_is_killed_while_it_commits_leaves_no_document_without_its_pages(dies_after):
    """Its successor, and readers without the head, take the latest document that is stored."""
    store, pages = Failing(lambda: NOW), {f"_index/blocks/{number}": b"page" for number in range(3)}
    store.left = dies_after + 1
    with pytest.raises(StoreError, match="killed"):
        await commit(store, MemoryHead(1), None, Manifest(), pages)
    store.left = -1
    stored = {one.path for one in await store.list()}
    assert await latest_offline(store, Manifest) is None or pages.keys() <= stored


async def test_readers_without_the_head_find_the_latest_document():
    store, state = MemoryStore(), HeadState()
    first = await commit(store, MemoryHead(1, state), None, Manifest())
    second = await commit(store, MemoryHead(12, state), first, Manifest())
    with pytest.raises(FencedError):
        await commit(store, MemoryHead(9, state), first, named("deposed"))
    assert await latest_offline(store, Manifest) == second


def test_a_memory_head_shows_its_state():
    assert repr(MemoryHead(3)) == "MemoryHead(token=3, head=None)"

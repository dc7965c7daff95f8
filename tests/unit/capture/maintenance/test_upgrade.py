"""Archives of formats 1 and 2, written by the code of their time, become format 3: read before and after."""

import asyncio
import hashlib
import json
from typing import ClassVar
from uuid import uuid4

import msgspec
import pytest
from archived import ARCHIVE, KEYS, NOW, SIGNER, STREAM
from failing import Failing
from old_archives import FORMATS, SEQUENCES, old_archive
from wide_index import SMALL

from capture.archive import chain
from capture.archive.index import tree
from capture.archive.index.tree import Index
from capture.archive.manifest import Manifest
from capture.archive.picture import read_picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.errors import CompactionError, ManifestError, NotSweptError, StoreError
from capture.maintenance.sweep import read_entries
from capture.maintenance.upgrade import preview, upgrade_manifest, upgrade_table
from capture.stores import open as opened
from capture.verification.audit import audit
from capture.verification.check import check

BLOCKS, FILES = {1: 3, 2: 1}, {1: 2, 2: 2}  # of each format


def pointers(archived, token):
    signer = archived.signer
    archived.token = token
    return archived.pointer(Manifest, signer), archived.pointer(Table, signer)


async def bring_up(archived, token):
    """What `capture upgrade` does."""
    manifest, table = pointers(archived, token)
    await upgrade_manifest(archived.store, manifest, now=archived.now)
    await upgrade_table(archived.store, table, archived.heads[Manifest].read, now=archived.now)


async def lead(archived, token):
    """What the leaders of running nodes do."""
    archived.token = token
    await archived.sweep()
    await archived.compact()


async def held(archived):
    """The sequences that readers find, and those that are there twice."""
    entries, unreadable = await read_entries(archived.store)
    picture = await read_picture(archived.store, archived.readers[Manifest], archived.readers[Table])
    assert unreadable == []
    sets = [
        Sequences.from_bytes(one.sequences)
        for one in (*picture.blocks, *picture.files, *picture.list_unadopted(entries))
    ]
    return list(Sequences.union_of(sets)), list(Sequences.find_repeated(sets))


async def contents(archived):
    return {path: await archived.store.get(path) for path in await archived.paths()}


async def reached(archived):
    """The paths of all pages that the heads, or what they have replaced, name."""
    found = set()
    for kind in (Manifest, Table):
        document = await chain.read(archived.store, archived.heads[kind].head, kind)
        index = Index(archived.store, kind.PAGES)
        names = await index.reach(document.index)
        found |= {index.path(name) for name in names.union(*(one.pages for one in document.outdated))}
    return found


def signer_of(number):
    return SIGNER if number == 2 else None


@pytest.fixture(params=["pages", "inline"])
def sizes(request, monkeypatch):
    """Indexes of several levels, or whole in their documents."""
    if request.param == "pages":
        monkeypatch.setattr(tree, "SIZES", SMALL)
    return request.param


@pytest.mark.parametrize("number", FORMATS)
async def test_the_preview_says_what_is_written_and_writes_nothing(number, sizes):
    archived = await old_archive(number, signer=signer_of(number))
    before = await contents(archived)
    manifest, table = await preview(archived.store, archived.readers[Manifest], archived.readers[Table])
    assert await contents(archived) == before
    head = archived.heads[Manifest].head
    assert (manifest.path, manifest.format, manifest.bytes) == (head.path, number, len(before[head.path]))
    assert (manifest.objects, table.objects) == (BLOCKS[number], FILES[number])
    if number == 1:
        assert (table.path, table.format, table.bytes) == ("_table/", 1, 0)
    else:
        assert (table.path, table.format) == (archived.heads[Table].head.path, 2)
    await bring_up(archived, 20)
    for kind, told in ((Manifest, manifest), (Table, table)):
        pages = await archived.paths(kind.PAGES)
        written = [*pages, archived.heads[kind].head.path]
        assert told.pages == len(pages)
        assert bool(pages) == (sizes == "pages")
        size = sum([len(await archived.store.get(path)) for path in written])
        assert abs(told.new_bytes - size) < 400  # the names of its leader and of its parent, the signature
    after = await preview(archived.store, archived.readers[Manifest], archived.readers[Table])
    assert [(one.format, one.objects, one.new_bytes) for one in after] == [
        (3, BLOCKS[number], None),
        (3, FILES[number], None),
    ]


@pytest.mark.parametrize("by", [bring_up, lead])
@pytest.mark.parametrize("number", FORMATS)
async def test_readers_find_the_same_before_and_after(number, by, sizes):
    signer = signer_of(number)
    archived = await old_archive(number, signer=signer)
    keys = KEYS.public if signer else None
    objects = {
        path: await archived.store.get(path) for place in ("blocks/", "table/") for path in await archived.paths(place)
    }
    assert await held(archived) == (SEQUENCES, [24])
    await by(archived, 20)
    assert (await held(archived))[0] == SEQUENCES
    assert (await audit(archived.store, archived.readers, archive=ARCHIVE, keys=keys, deep=True)).problems == ()
    config = CaptureConfig(stream=STREAM, archive=ARCHIVE, store=archived.store.url)
    found = await check(None, config, archived.store)
    assert (found.verdict.problems, list(found.verdict.stored)) == ((), SEQUENCES)
    if by is bring_up:
        assert await held(archived) == (SEQUENCES, [24])
        assert {path: await archived.store.get(path) for path in objects} == objects
    assert await reached(archived) == set(await archived.paths("_index/"))
    for kind in (Manifest, Table):
        document = await chain.read(archived.store, archived.heads[kind].head, kind)
        assert (document.format, document.listed) == (3, [])


@pytest.mark.parametrize("number", FORMATS)
async def test_a_leader_logs_that_it_upgrades(number, caplog):
    caplog.set_level("INFO", "capture.chain")
    archived = await old_archive(number, signer=signer_of(number))
    path = archived.heads[Manifest].head.path
    await archived.sweep()
    said = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "upgrade"]
    assert said == [f"{path} has format {number} and is upgraded to 3, which earlier versions can't read"]
    caplog.clear()
    archived.token += 1
    await archived.sweep()
    assert [one for one in caplog.records if getattr(one, "action", "") == "upgrade"] == []


@pytest.mark.parametrize("number", FORMATS)
async def test_nothing_is_written_again_by_a_second_upgrade(number, sizes):
    archived = await old_archive(number, signer=signer_of(number))
    await bring_up(archived, 20)
    pages = set(await archived.paths("_index/"))
    await bring_up(archived, 21)
    assert set(await archived.paths("_index/")) == pages


@pytest.mark.parametrize("number", FORMATS)
async def test_a_table_waits_for_its_manifest(number):
    archived = await old_archive(number, signer=signer_of(number))
    before = await contents(archived)
    with pytest.raises(NotSweptError):
        await upgrade_table(archived.store, pointers(archived, 20)[1], archived.heads[Manifest].read, now=NOW)
    assert await contents(archived) == before


async def test_an_archive_without_a_table_gets_none():
    archived = await old_archive(2, signer=SIGNER)
    for path in await archived.paths("_table/"):
        await archived.change(path, None)
    archived.heads[Table].head = None
    await bring_up(archived, 20)
    assert archived.heads[Table].head is None
    assert len(await preview(archived.store, archived.readers[Manifest], archived.readers[Table])) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("by", [bring_up, lead])
@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.long
async def test_leaders_that_are_killed_anywhere_leave_what_their_successors_find_again(number, by, after, monkeypatch):
    monkeypatch.setattr(tree, "SIZES", SMALL)
    signer = signer_of(number)
    whole = await old_archive(number, signer=signer)
    await bring_up(whole, 20)
    pages = set(await whole.paths("_index/"))  # of every leader: the documents of before determine them
    killed = 0
    while True:
        store = Failing(lambda: NOW, f"killed-{uuid4().hex}")
        monkeypatch.setitem(opened._memory, store.url.removeprefix("memory://"), store)  # for the compaction's engine
        archived = await old_archive(number, store, signer=signer)
        killed += 1
        store.left, store.after = killed, after
        try:
            await by(archived, 20)
        except (StoreError, CompactionError):  # its engine was killed, or itself
            pass
        else:
            break
        store.left = -1
        assert (await held(archived))[0] == SEQUENCES
        left = set(await archived.paths("_index/"))
        await bring_up(archived, 21)
        assert (await held(archived))[0] == SEQUENCES
        if by is bring_up:
            assert left <= pages == set(await archived.paths("_index/")) == await reached(archived)
        await lead(archived, 22)
        assert await held(archived) == (SEQUENCES, [])
        keys = KEYS.public if signer else None
        assert (await audit(store, archived.readers, archive=ARCHIVE, keys=keys, deep=True)).problems == ()
    assert killed > 10


async def test_two_leaders_that_upgrade_at_once_write_the_same_pages(monkeypatch):
    """A deposed one is fenced, and its pages are those of its successor."""
    monkeypatch.setattr(tree, "SIZES", SMALL)
    archived = await old_archive(2, signer=SIGNER)
    first, second = pointers(archived, 20)[0], pointers(archived, 21)[0]
    done = await asyncio.gather(
        *(upgrade_manifest(archived.store, one, now=NOW) for one in (first, second)), return_exceptions=True
    )
    assert done[1] is None
    assert await reached(archived) == set(await archived.paths("_index/"))
    assert (await held(archived))[0] == SEQUENCES


@pytest.mark.parametrize("part", ["blocks", "table"])
async def test_a_damaged_set_in_an_old_document_is_named_with_its_document(part):
    archived = await old_archive(1)
    head = archived.heads[Manifest].head
    document = json.loads(await archived.store.get(head.path))
    document[part][0]["sequences"] = "AAAA"
    data = json.dumps(document).encode()
    await archived.change(head.path, data)
    archived.heads[Manifest].head = msgspec.structs.replace(head, sha256=hashlib.sha256(data).hexdigest())
    for work in (preview(archived.store, archived.readers[Manifest], archived.readers[Table]), bring_up(archived, 20)):
        with pytest.raises(ManifestError, match=f"^{head.path} is damaged: not a set of sequences"):
            await work


async def test_an_earlier_version_refuses_the_new_format_by_name():
    class Before(Manifest, frozen=True, kw_only=True):
        FORMAT: ClassVar[int] = 2

    archived = await old_archive(2, signer=SIGNER)
    await bring_up(archived, 20)
    path = archived.heads[Manifest].head.path
    said = f"^{path} has format 3; this version reads up to 2: use the version that wrote it$"
    with pytest.raises(ManifestError, match=said):
        chain.decode(await archived.store.get(path), path, Before)

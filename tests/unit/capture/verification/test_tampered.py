"""`capture verify` on an archive that somebody has touched: which object it was is told, without NATS."""

import re

import pytest
from archived import ARCHIVE, KEYS, SIGNER, STREAM, Archived

from capture.archive.manifest import entry_block
from capture.config.settings import CaptureConfig
from capture.verification.check import WRONG, check

KINDS = ("blocks/", "table/", "_entries/", "_manifest/", "_table/", "_recorded/", "_history/", "_streams/", "_asked/")
KINDS += ("iceberg/",)


@pytest.fixture
async def archived(tmp_path, monkeypatch):
    """A signed archive with an object of every kind; no leader is about to write anything."""
    monkeypatch.setattr("capture.verification.audit.ANNOUNCED", 0.02)
    archived = await Archived(SIGNER).make()
    public = tmp_path / "public"
    public.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.public.lines().items()))
    config = CaptureConfig(stream=STREAM, archive=ARCHIVE, store=archived.store.url, public_key_file=str(public))

    async def verified():
        return await check(None, config, archived.store)

    archived.verified = verified
    return archived


async def counting(archived):
    """The paths of all objects that count: blocks that the table has replaced are as good as gone."""
    gone = re.compile(r"/key=eu/.*-1-4-4-")
    return [path for kind in KINDS for path in await archived.paths(kind) if not gone.search(path)]


async def told(archived, path):
    found = await archived.verified()
    assert found.status == WRONG
    names = {path, entry_block(path)}  # a wrong digest in an entry makes its block another one than is described
    assert any(name in problem for problem in found.verdict.problems for name in names), (path, found.verdict.problems)


async def test_nothing_is_wrong_with_an_archive_that_nobody_has_touched(archived):
    found = await archived.verified()
    assert (found.verdict.problems, found.notes) == ((), ())
    assert len(found.verdict.stored) == 8


async def test_a_byte_that_is_changed_anywhere_is_found(archived):
    for path in await counting(archived):
        data = await archived.store.get(path)
        for at in (0, len(data) // 2, len(data) - 1):
            changed = bytearray(data)
            changed[at % len(data)] ^= 1
            await archived.change(path, bytes(changed))
            await told(archived, path)
        await archived.change(path, data)


async def test_an_object_that_was_removed_is_found(archived):
    newest = {state.head.path for state in archived.heads.values()}
    for path in await counting(archived):
        if path in newest or path.startswith("_entries/"):
            continue  # without NATS, what is noted elsewhere finds the first; a stream that is asked finds the others
        data = await archived.store.get(path)
        await archived.change(path, None)
        await told(archived, path)
        await archived.change(path, data)


async def test_two_objects_that_were_exchanged_are_found(archived):
    for kind in ("blocks/", "_entries/", "_manifest/", "_table/", "_recorded/", "_history/"):
        paths = [path for path in await counting(archived) if path.startswith(kind)]
        if kind == "_entries/":
            paths.append((await archived.paths("_manifest/"))[-1])
        one, other = paths[-2:]
        first, second = await archived.store.get(one), await archived.store.get(other)
        await archived.change(one, second)
        await archived.change(other, first)
        await told(archived, other)
        await archived.change(one, first)
        await archived.change(other, second)

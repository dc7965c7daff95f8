"""Somebody who may write to the store changes, removes or moves what lies there: which object it was is told."""

import asyncio

import msgspec
import pytest
from archived import ARCHIVE, CREATED, KEYS, SIGNER, STREAM, Archived, store_block

from capture.archive import chain
from capture.archive.chain import KEPT, Head, current, document_parts, document_path, latest_offline
from capture.archive.iceberg_state import hint_path, version_path
from capture.archive.identity import claim
from capture.archive.index import page
from capture.archive.manifest import Manifest
from capture.archive.readme import README, VERSION, text
from capture.archive.recording import HOUR, Recording
from capture.archive.signing import Signer, SigningKeys, split
from capture.archive.table import Table
from capture.errors import FencedError
from capture.testing import HeadState, MemoryHead
from capture.verification.audit import UNVOUCHED
from capture.verification.audit import audit as audit_of

OTHER = SigningKeys({"mine": bytes(32)})  # another key of the same name
KINDS = (
    "_manifest/",
    "_table/",
    "_recorded/",
    "_history/",
    "_streams/",
    "_asked/",
    "iceberg/",
    "_archive.json",
    README,
)

# Who vouches for the newest documents: NATS, a key without NATS, or both.
WAYS = {
    "asked": lambda archived: {"heads": archived.readers},
    "signed": lambda archived: {"keys": KEYS.public},
    "both": lambda archived: {"keys": KEYS.public, "heads": archived.readers},
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """No leader is about to write anything here."""
    monkeypatch.setattr("capture.verification.audit.ANNOUNCED", 0.02)


async def audit(store, heads=None, *, archive=ARCHIVE, **options):
    return await audit_of(store, heads, archive=archive, **options)


@pytest.fixture(params=WAYS)
async def looked(request):
    """An archive with an object of every kind, and how it is looked at."""
    archived = await Archived(None if request.param == "asked" else SIGNER).make()

    async def look(deep=True):
        return await audit(archived.store, **WAYS[request.param](archived), deep=deep)

    archived.look, archived.asked = look, request.param != "signed"
    return archived


async def told(archived, path, *, also=()):
    """Return what is told of an object; nothing else may be told of, but of objects that name it."""
    found = (await archived.look()).problems
    assert any(path in problem for problem in found), (path, found)
    assert all(any(one in problem for one in (path, *also)) for problem in found), found
    return "\n".join(found)


@pytest.mark.parametrize("deep", [True, False])
async def test_an_archive_that_nobody_has_touched_is_sound(looked, deep):
    found = await looked.look(deep)
    assert (found.problems, found.notes, found.ok) == ((), (), True)
    assert found.documents >= (10 if deep else 3)


async def test_a_byte_that_is_changed_in_any_kind_of_object_is_found_and_the_object_named(looked):
    for kind in KINDS:
        for path in await looked.paths(kind):
            data = await looked.store.get(path)
            for at in {0, 1, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1}:
                changed = bytearray(data)
                changed[at % len(data)] ^= 1
                await looked.change(path, bytes(changed))
                assert any(path in problem for problem in (await looked.look()).problems), (path, at)
            await looked.change(path, data)
    assert (await looked.look()).ok


async def test_an_object_of_any_kind_that_is_removed_is_named(looked):
    """But for the newest document where NATS is not asked: what was put back is found otherwise, see below."""
    newest = [head.head.path for head in looked.heads.values()]
    for kind in KINDS:
        for path in await looked.paths(kind):
            data = await looked.store.get(path)
            await looked.change(path, None)
            found = (await looked.look()).problems
            assert any(path in problem for problem in found) or (path in newest and not looked.asked), (path, found)
            await looked.change(path, data)
    assert (await looked.look()).ok


async def test_a_document_that_is_missing_among_the_last_ones_is_told_without_reading_them(looked):
    for kind in (Manifest, Table, Recording):
        paths = await looked.paths(kind.FOLDER)
        data = await looked.store.get(paths[0])
        await looked.change(paths[0], None)
        [problem] = (await looked.look(deep=False)).problems
        assert problem == f"{kind.FOLDER}0000000001-….json is missing, one of the last {KEPT}"
        await looked.change(paths[0], data)


@pytest.mark.parametrize("deep", [True, False])
async def test_where_the_newest_document_is_gone_what_was_cleaned_up_before_is_not_missed(deep):
    archived = await Archived().make()
    for number in range(100, 100 + KEPT):
        await store_block(archived.store, [number])
        archived.now += HOUR
        await archived.sweep()
    archived.now += HOUR
    await archived.sweep()  # nothing to adopt: it removes all but the last KEPT
    manifests = await archived.paths("_manifest/")
    assert len(manifests) == KEPT
    await archived.compact()
    await archived.change(manifests[-1], None)
    found = (await audit(archived.store, deep=deep)).problems
    assert not [one for one in found if manifests[-1] not in one and "_manifest/" in one.partition(" ")[0]]
    asked = (await audit(archived.store, archived.readers, deep=deep)).problems
    assert asked == (f"{manifests[-1]} is missing, and the head names it",)
    await archived.change(manifests[5], None)  # what is missing among them is told all the same
    name = manifests[5].removesuffix("1.json")
    assert any(one.startswith(name) for one in (await audit(archived.store, deep=deep)).problems)


@pytest.fixture
async def committed(looked):
    """The same archive after a commit of its leader, which has not pointed readers without a catalog to it yet."""
    await looked.compact()
    _, table = await chain.current(looked.store, looked.pointer(Table), Table, looked.now)
    exposed = table.iceberg[STREAM]
    looked.pointers = [version_path(STREAM, exposed.number), hint_path(STREAM)]
    looked.announced = [await looked.store.get(path) for path in looked.pointers]
    assert int(looked.announced[1]) > 1
    for path, before in zip(looked.pointers, (None, b"1"), strict=True):
        await looked.change(path, before)
    return looked


async def test_a_table_is_sound_whose_leader_points_readers_without_a_catalog_to_it_meanwhile(committed, monkeypatch):
    monkeypatch.setattr("capture.verification.audit.ANNOUNCED", 10.0)
    found = asyncio.create_task(committed.look())
    await asyncio.sleep(0.3)
    assert not found.done()
    for path, content in zip(committed.pointers, committed.announced, strict=True):
        await committed.change(path, content)
    assert (await found).problems == ()


async def test_a_table_is_told_to_which_readers_without_a_catalog_are_never_pointed(committed):
    problems = (await committed.look()).problems
    assert {one.partition(" ")[0] for one in problems} == set(committed.pointers)
    assert "points readers without a catalog to another table than _table/" in problems[0]


async def test_a_hint_of_any_content_is_told(looked):
    hint = hint_path(STREAM)
    for content in (b"", b" 1", b"x", b"9" * 5000, "٣".encode(), b"\xff"):
        await looked.change(hint, content)
        assert f"{hint} points readers" in await told(looked, hint)


async def test_two_objects_that_were_exchanged_are_both_named(looked):
    for kind in ("_manifest/", "_table/", "_recorded/", "_history/"):
        one, other = (await looked.paths(kind))[:2]
        first, second = await looked.store.get(one), await looked.store.get(other)
        await looked.change(one, second)
        await looked.change(other, first)
        await told(looked, other, also=[one])
        if kind != "_history/":  # what comes before a wrong one there is not reached
            await told(looked, one, also=[other])
        await looked.change(one, first)
        await looked.change(other, second)


def resigned(path, document, keys):
    """Return the document with a signature of these keys in the place of its own, if it had one."""
    content, signature = split(document)
    return content if signature is None else keys.sign(ARCHIVE, path, content)


async def test_a_manifest_whose_entries_were_put_in_another_order_is_named(looked):
    path = looked.heads[Manifest].head.path
    content, signature = split(await looked.store.get(path))
    manifest = msgspec.json.decode(content, type=Manifest)
    leaf = page.decode(manifest.index.leaf, manifest.index.root.hex())
    assert len(leaf.entries) > 1
    root, leaf = page.encode(msgspec.structs.replace(leaf, entries=leaf.entries[::-1]))
    index = msgspec.structs.replace(manifest.index, root=root, leaf=leaf)
    changed = msgspec.json.encode(msgspec.structs.replace(manifest, index=index))
    if signature:
        changed = changed[:-1] + b',"signature":' + msgspec.json.encode(signature) + b"}"
    await looked.change(path, changed)
    assert "was changed" in await told(looked, path)


async def test_a_document_that_was_signed_again_with_another_key_is_named(looked):
    for kind in (Manifest, Table, Recording):
        path = looked.heads[kind].head.path
        data = await looked.store.get(path)
        await looked.change(path, resigned(path, data.replace(b'"leader":"', b'"leader":"x'), OTHER))
        await told(looked, path)
        await looked.change(path, data)


async def test_an_older_manifest_under_a_newer_name_is_named(looked):
    for kind in (Manifest, Table, Recording):
        oldest, last = (await looked.paths(kind.FOLDER))[0], looked.heads[kind].head
        path = document_path(kind, last.number + 1, last.token)
        await looked.change(path, await looked.store.get(oldest))
        assert "it is in another document's place" in await told(looked, path)
        await looked.change(path, None)


async def test_a_whole_new_document_after_the_last_one_is_named_where_documents_are_signed():
    archived = await Archived(SIGNER).make()
    for keys in (None, OTHER):
        head = archived.heads[Manifest].head
        forger = MemoryHead(head.token, HeadState(), keys and Signer(ARCHIVE, keys))
        forged = await chain.commit(archived.store, forger, head, Manifest())
        found = await audit(archived.store, archived.readers, keys=KEYS.public)
        assert [problem for problem in found.problems if forged.path in problem] == list(found.problems) != []
        offline = await audit(archived.store, keys=KEYS.public)
        assert any(forged.path in problem for problem in offline.problems)
        await archived.change(forged.path, None)


async def test_what_was_put_beside_the_chain_under_a_later_term_is_named(looked):
    last = looked.heads[Manifest].head
    fake = Manifest(format=2, number=last.number - 1, token=9, leader="fake")
    path = document_path(Manifest, fake.number, 9)
    await looked.change(path, msgspec.json.encode(fake))
    assert "of a later term than the committed document" in await told(looked, path)


async def test_what_was_changed_is_still_told_after_the_next_recording(looked):
    [path] = await looked.paths("_asked/")
    await looked.change(path, (await looked.store.get(path)).replace(b'"start":1', b'"start":5'))
    await looked.record(state={"first_seq": 1, "last_seq": 99})
    assert "was changed" in await told(looked, path)


async def test_a_document_that_leaves_others_out_is_named():
    archived = await Archived().make()
    head = archived.heads[Recording].head
    left_out = await chain.read(archived.store, head, Recording)
    before = await chain.read(archived.store, Head(0, 0, left_out.parent, left_out.parent_sha256), Recording)
    forged = msgspec.structs.replace(
        left_out, number=head.number + 1, parent=before.parent, parent_sha256=before.parent_sha256
    )
    path = document_path(Recording, forged.number, forged.token)
    await archived.change(path, msgspec.json.encode(forged))
    found = await audit(archived.store, deep=True)
    assert f"{before.parent} is not the predecessor of {path}, which names it" in found.problems


async def test_what_a_deposed_leader_has_left_is_no_problem(looked):
    head = looked.heads[Manifest].head
    looked.token = 2
    await current(looked.store, looked.pointer(Manifest), Manifest, looked.now)
    looked.token = 1
    with pytest.raises(FencedError):
        await chain.commit(looked.store, looked.pointer(Manifest), head, Manifest(leader="deposed"))
    assert document_path(Manifest, head.number + 1, 1) in await looked.paths("_manifest/")
    assert (await looked.look()).problems == ()


async def test_documents_that_were_cleaned_up_are_not_missed():
    archived = await Archived(SIGNER).make()
    for number in range(2 * KEPT):
        archived.now += 1000.0
        await archived.record(state={"first_seq": 1, "last_seq": number})
    assert document_path(Recording, 1, 1) not in await archived.paths("_recorded/")
    for deep in (True, False):
        found = await audit(archived.store, archived.readers, keys=KEYS.public, deep=deep)
        assert found.problems == ()


async def test_clean_up_that_goes_on_while_we_look_is_no_problem():
    """The head is told, then many commits follow, and what was to be read is deleted."""
    archived = await Archived().make()
    first = archived.heads[Recording].head
    answers = [first]

    async def read():
        return answers.pop(0) if answers else archived.heads[Recording].head

    for number in range(KEPT + 1):
        await archived.record(state={"first_seq": 1, "last_seq": number})
    await archived.change(first.path, None)
    found = await audit(archived.store, archived.readers | {Recording: read}, deep=True)
    assert found.problems == ()


async def test_an_archive_that_was_put_back_is_found_by_nats_and_by_what_was_noted(looked):
    before = {path: await looked.store.get(path) for path in await looked.paths()}
    noted = []
    for kind in (Manifest, Recording):
        head, document = await current(looked.store, looked.pointer(kind), kind, looked.now)
        noted.append(await chain.commit(looked.store, looked.pointer(kind), head, document))
    assert (await audit(looked.store, noted=noted, deep=True)).ok
    for path in await looked.paths():
        await looked.change(path, before.get(path))
    for one in noted:
        assert one.path in "\n".join((await audit(looked.store, looked.readers)).problems)
        found = await audit(looked.store, noted=[one], keys=looked.signer and KEYS.public, deep=True)
        [problem] = found.problems
        assert problem.startswith(f"{one.path} was noted, but the archive ends before it, with ")


async def test_a_chain_that_was_written_anew_does_not_go_through_what_was_noted():
    archived = await Archived().make()
    noted = await latest_offline(archived.store, Manifest)
    for path in await archived.paths("_manifest/"):
        await archived.change(path, None)
    archived.heads[Manifest] = HeadState()
    for _ in range(noted.number + 2):
        head, document = await current(archived.store, archived.pointer(Manifest), Manifest, archived.now)
        await chain.commit(archived.store, archived.pointer(Manifest), head, document)
    assert (await audit(archived.store, deep=True)).ok
    found = await audit(archived.store, noted=[noted], deep=True)
    assert found.problems == (f"{noted.path} was noted, but the archive holds another document with its number",)


async def test_without_nats_and_without_a_key_it_is_said_that_nobody_vouches():
    archived = await Archived().make()
    assert (await audit(archived.store)).notes == (UNVOUCHED,)
    assert (await audit(archived.store, archived.readers)).notes == ()


async def test_with_a_key_an_archive_that_is_not_signed_is_told_so():
    archived = await Archived().make()
    found = "\n".join((await audit(archived.store, archived.readers, keys=KEYS.public)).problems)
    for kind in (Manifest, Table, Recording):
        assert f"{archived.heads[kind].head.path} is not signed" in found


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (b'{"keys":{"mine":"AAAA"},"format":1}', "_signing.json was changed: the keys in it are not the given ones"),
        (b'{"keys":{"yours":"AAAA"},"format":1}', "_signing.json was changed: the keys in it are not the given ones"),
        (b"{", "_signing.json in memory://"),
        (None, "_signing.json is missing: a node writes it when it starts"),
    ],
)
async def test_another_public_key_in_the_archive_is_told(declared, why):
    archived = await Archived(SIGNER).make()
    await archived.change("_signing.json", declared)
    [problem] = (await audit(archived.store, keys=KEYS.public)).problems
    assert problem.startswith(why)


async def test_after_a_change_of_keys_the_new_one_alone_is_enough_for_the_documents_that_it_signed():
    archived = await Archived(SIGNER).make()
    new = SigningKeys({"new": bytes(32), "mine": bytes(range(32))})
    archived.signer = Signer(ARCHIVE, new)
    archived.token = 2
    await claim(archived.store, ARCHIVE, STREAM, CREATED, archived.signer)
    for kind in (Manifest, Table, Recording):
        await current(archived.store, archived.pointer(kind), kind, archived.now)
    found = await audit(archived.store, archived.readers, keys=SigningKeys({"new": bytes(32)}).public)
    assert (found.problems, found.notes) == ((), ("_signing.json names more keys than were given: mine",))
    assert (await audit(archived.store, archived.readers, keys=new.public, deep=True)).ok


async def test_an_archive_under_the_name_of_another_is_told_by_its_signatures():
    archived = await Archived(SIGNER).make()
    found = await audit(archived.store, keys=KEYS.public, archive="invoices")
    assert {problem.split(" has ")[0] for problem in found.problems} == {
        archived.heads[kind].head.path for kind in (Manifest, Table, Recording)
    }


async def test_a_later_versions_description_is_not_judged(looked):
    later = text().replace(b"(description %d of" % VERSION, b"(description %d of" % (VERSION + 1), 1)
    await looked.change(README, later)
    found = await looked.look()
    assert found.ok
    assert f"{README} is of a later version" in found.notes[0]


async def test_an_archive_of_before_there_were_recordings_is_judged_by_what_it_has():
    archived = await Archived().make()
    for path in (*await archived.paths("_recorded/"), *await archived.paths("_history/"), README):
        await archived.change(path, None)
    archived.heads[Recording] = HeadState()
    assert (await audit(archived.store, archived.readers, deep=True)).ok


async def test_what_is_no_document_in_a_folder_of_documents_is_left_alone(looked):
    await looked.change("_manifest/notes.txt", b"x")
    assert document_parts(Manifest, "_manifest/notes.txt") is None
    assert (await looked.look()).ok

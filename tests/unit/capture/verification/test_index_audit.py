"""An index whose pages somebody has touched, or forged behind documents that are valid: which page it is, is said."""

from hashlib import sha256

import cramjam
import msgspec
import pytest
from archived import KEYS, SIGNER, STREAM, Archived, store_block
from wide_index import DAMAGES, KINDS, another, as_entry, flip, foreign, pages_of, recommit, wide_archive

from capture.archive import chain
from capture.archive.index import page as pages
from capture.archive.index.page import Page, Ref, SetPage, decode, encode, page_path, ref_of
from capture.archive.index.tree import Index
from capture.archive.index.update import held_of
from capture.archive.index.version import Held, Version
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import read_picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import ManifestError
from capture.verification import index_audit
from capture.verification.audit import audit as audit_of

WHATS = ("root", "inner", "leaf", "set", "held")
READ = ("root", "inner", "leaf", "set")  # by everybody who wants all objects


async def audit(archived, **options):
    return await audit_of(archived.store, archived.readers, archive="orders", **options)


async def read(archived):
    return await read_picture(archived.store, archived.readers[Manifest], archived.readers[Table])


async def contents(archived):
    return {path: await archived.store.get(path) for path in await archived.paths()}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_page_of_any_kind_that_was_touched_is_named_by_all_who_read_it(damage, monkeypatch):
    archived = await wide_archive(monkeypatch)
    how, said = DAMAGES[damage]
    for kind in KINDS:
        found = await pages_of(archived, kind)
        for what in WHATS:
            path = found[what][-1]
            data = await archived.store.get(path)
            changed = await how(archived, path) if how in (another, foreign) else how(data) if callable(how) else how
            await archived.change(path, changed)
            [problem] = (await audit(archived, deep=True)).problems
            assert problem.startswith(f"{path} {said}"), (kind, what, problem)
            assert (await audit(archived)).ok  # reads no pages
            if what in READ:
                with pytest.raises(ManifestError, match=f"^{path} {said}"):
                    await read(archived)
            await archived.change(path, data)
    assert (await audit(archived, deep=True)).ok


@pytest.mark.parametrize("damage", ["missing", "truncated"])
async def test_a_leader_that_meets_such_a_page_names_it_and_changes_nothing(damage, monkeypatch):
    archived = await wide_archive(monkeypatch)
    await store_block(archived.store, [3000, 3002], key="late")
    how, said = DAMAGES[damage]
    for kind, leaders in ((Manifest, (archived.sweep, archived.compact)), (Table, (archived.compact,))):
        for what in ("root", "held"):
            path = (await pages_of(archived, kind))[what][0]
            data = await archived.store.get(path)
            await archived.change(path, how(data) if how else None)
            before = await contents(archived)
            for lead in leaders:
                if what == "held" and (kind, lead) == (Manifest, archived.compact):
                    continue  # the compaction does not read it
                heads = {one: state.head for one, state in archived.heads.items()}
                with pytest.raises(ManifestError, match=f"^{path} {said}"):
                    await lead()
                assert {one: state.head for one, state in archived.heads.items()} == heads
                after = await contents(archived)
                assert before.items() <= after.items(), "something was deleted"
            await archived.change(path, data)
    await archived.sweep()
    await archived.compact()
    assert (await audit(archived, deep=True)).ok


async def test_a_leaf_in_a_document_is_read_by_its_hash():
    archived = await Archived(SIGNER).make()
    document = await chain.read(archived.store, archived.heads[Manifest].head, Manifest)
    leaf = document.index.leaf
    path = page_path(Manifest.PAGES, document.index.root)
    for changed in (leaf[:-1], flip(leaf, 9), (await foreign(archived, path))):
        head = await recommit(archived, Manifest, msgspec.structs.replace(document.index, leaf=changed))
        [problem] = (await audit(archived, keys=KEYS.public, deep=True)).problems
        assert problem.startswith(f"{path} was changed: its SHA-256 is not its name. ")
        assert problem.endswith(f" (an index of {head.path})")
        with pytest.raises(ManifestError, match=f"^{path} was changed"):
            await read(archived)
    await recommit(archived, Manifest, msgspec.structs.replace(document.index, leaf=b""))
    [problem] = (await audit(archived, deep=True)).problems
    assert problem.startswith(f"{path} is missing from memory://")
    assert head.number > 0


# --- forged pages, which documents name by their hash ----------------------------------------------------------------


def squeeze(data):
    return bytes(cramjam.zstd.compress(data))


def compress(value):
    return squeeze(msgspec.msgpack.encode(value))


def length_lies(length):
    """A leaf whose set says another length than it has."""
    data, held = msgspec.msgpack.encode(LEAF), SET["sequences"]
    at = data.index(held) - 2
    assert data[at] == 0xC4, "bin 8"
    return squeeze(data[:at] + b"\xc6" + length.to_bytes(4, "big") + data[at + 2 :])


def claim_size(data, size):
    """Return the Zstandard frame with another content size in its header."""
    assert data[4] >> 6 == 2, "four bytes of size"
    at = 5 if data[4] & 0x20 else 6
    return data[:4] + bytes([data[4] | 0xC0]) + data[5:at] + size.to_bytes(8, "little") + data[at + 4 :]


def stream_frame(data):
    """Return a Zstandard frame whose header does not say its content size."""
    made = cramjam.zstd.Compressor()
    made.compress(data)
    return bytes(made.finish())


PLAIN = {"format": 1, "level": 0, "token": 1, "number": 1, "entries": [], "children": []}
SET = msgspec.structs.asdict(as_entry(STREAM))
LEAF = PLAIN | {"entries": [SET]}
ZEROS = bytes(cramjam.zstd.compress(bytes(70 << 20)))
FORGED = {
    "of a newer format": (
        compress({"format": 2, "level": "other"}),
        "has format 2; this version reads up to 1: use the version that wrote it",
    ),
    "of a newer format with fields as now": (compress(PLAIN | {"format": 2}), "has format 2; this version reads up to"),
    "not compressed": (msgspec.msgpack.encode(PLAIN), "is damaged: it is not compressed by Zstandard"),
    "of five bytes": (b"\x28\xb5\x2f\xfd\x20", "is damaged: it is not compressed by Zstandard"),
    "a bomb": (ZEROS, "is damaged: 73,400,320 bytes are inside of it, and a page has at most 67,108,864"),
    "a bomb of terabytes": (claim_size(ZEROS, 1 << 42), "is damaged: 4,398,046,511,104 bytes are inside of it"),
    "a bomb that says it is small": (claim_size(ZEROS, 1000), "is damaged: "),
    "smaller than it says": (claim_size(ZEROS, 64 << 20), "is damaged: "),
    "of an unknown size": (stream_frame(bytes(1000)), "is damaged: its header does not say how many bytes are inside"),
    "two frames": (compress(PLAIN) + compress(PLAIN), "is damaged: "),
    "of zeros": (bytes(cramjam.zstd.compress(bytes(100))), "is damaged: "),
    "a list": (compress([1]), "is damaged: "),
    "a set that is longer than the page": (length_lies(1000), "is damaged: Input data was truncated"),
    "a set of four gigabytes": (length_lies((1 << 32) - 1), "is damaged: Input data was truncated"),
    "a set that ends inside of itself": (length_lies(1), "is damaged: "),
    "more bytes than its items": (squeeze(msgspec.msgpack.encode(LEAF) + b"\0"), "is damaged: MessagePack data is"),
    "a set as text, as JSON has it": (
        compress(LEAF | {"entries": [SET | {"sequences": "AQAAAAAAAAAAAAAAOzAAAAEAAAEAAgABAAEAAgA="}]}),
        "is damaged: Expected `bytes`, got `str` - at `$.entries[0].sequences`",
    ),
    "nested too deeply": (bytes(cramjam.zstd.compress(b"\x91" * 500_000)), "is damaged: "),
    "empty": (compress(PLAIN), "is damaged: a leaf has entries, and another page children"),
    "of level 13": (None, "is damaged: it is at level 13, and the highest possible is 12"),
    "below level 0": (None, "is damaged: it is at level -1, and the highest possible is 12"),
}


async def put(archived, kind, data):
    name = sha256(data).digest()
    await archived.store.put(page_path(kind.PAGES, name), data)
    return name


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_forged_root_is_refused_by_all_who_read_it(forged, kind, monkeypatch):
    archived = await Archived().make()
    data, said = FORGED[forged]
    if data is None:
        level = 13 if "13" in forged else -1
        document = await chain.read(archived.store, archived.heads[kind].head, kind)
        child = ref_of(document.index.root, decode(document.index.leaf, document.index.root.hex()))
        data = encode(Page(level=level, token=1, number=1, children=[child]))[1]
    name = await put(archived, kind, data)
    before = await chain.read(archived.store, archived.heads[kind].head, kind)
    await recommit(archived, kind, Version(root=name, streams=before.index.streams))
    path = page_path(kind.PAGES, name)
    [problem] = (await audit(archived, deep=True)).problems
    assert problem.startswith(f"{path} {said}"), problem
    assert len(problem) < 400
    with pytest.raises(ManifestError, match=f"^{path} is|^{path} has"):
        await read(archived)
    await store_block(archived.store, [50], key="late")
    with pytest.raises(ManifestError, match=f"^{path} "):
        await (archived.sweep() if kind is Manifest else archived.compact())


async def tower(archived, levels, *, step=1):
    """Return the root of pages above each other, each at `step` levels above the one below, and what is in the leaf."""
    document = await chain.read(archived.store, archived.heads[Manifest].head, Manifest)
    below = decode(document.index.leaf, document.index.root.hex())
    name = await put(archived, Manifest, document.index.leaf)
    for _ in range(levels):
        below = Page(level=below.level + step, token=1, number=1, children=[ref_of(name, below)])
        name = await put(archived, Manifest, encode(below)[1])
    return msgspec.structs.replace(document.index, root=name, leaf=b"")


async def test_a_tree_may_be_as_deep_as_it_is_said_and_no_deeper():
    archived = await Archived().make()
    await recommit(archived, Manifest, await tower(archived, 12))
    assert (await audit(archived, deep=True)).ok
    assert len((await read(archived)).blocks) == 2


async def test_a_tree_without_an_end_is_refused():
    """Each page names the next one at its own level: pages as many as somebody wants to write."""
    archived = await Archived().make()
    document = await chain.read(archived.store, archived.heads[Manifest].head, Manifest)
    below = Page(
        level=5,
        token=1,
        number=1,
        children=[ref_of(document.index.root, decode(document.index.leaf, document.index.root.hex()))],
    )
    for _ in range(3):
        name = await put(archived, Manifest, encode(below)[1])
        below = Page(level=5, token=1, number=1, children=[ref_of(name, below)])
    root = await put(archived, Manifest, encode(below)[1])
    await recommit(archived, Manifest, msgspec.structs.replace(document.index, root=root, leaf=b""))
    [problem] = (await audit(archived, deep=True)).problems
    said = f"{page_path(Manifest.PAGES, name)} is damaged: it is at level 5, its parent says 4"
    assert problem == f"{said} (an index of {archived.heads[Manifest].head.path})"
    with pytest.raises(ManifestError, match=f"^{said}"):
        await read(archived)
    await store_block(archived.store, [50], key="late")
    with pytest.raises(ManifestError, match=f"^{said}"):
        await archived.sweep()
    with pytest.raises(ManifestError, match=f"^{said}"):
        await Index(archived.store, Manifest.PAGES).find(Version(root=root), [("A", 0, "", 0, "")])


async def forge_sums(archived, kind, **changes):
    """Put a root above the leaf, which says something else about it."""
    document = await chain.read(archived.store, archived.heads[kind].head, kind)
    told = msgspec.structs.replace(
        ref_of(document.index.root, decode(document.index.leaf, document.index.root.hex())), **changes
    )
    await put(archived, kind, document.index.leaf)
    name = await put(archived, kind, encode(Page(level=1, token=1, number=1, children=[told]))[1])
    await recommit(archived, kind, msgspec.structs.replace(document.index, root=name, leaf=b""))
    return page_path(kind.PAGES, document.index.root)


SUMS = {
    "low": ("A", 0, "", 0, ""), "high": ("Z", 0, "", 0, ""), "entries": 7, "messages": 70, "stored": 1, "first": 0,
    "last": 10**6, "min_ns": 1, "max_ns": 2, "size": 3, "runs": [(1, 99)], "apart": True,
}  # fmt: skip


def test_each_field_of_a_child_is_tried():
    assert {*SUMS, "page", "level"} == set(Ref.__struct_fields__)


@pytest.mark.parametrize("field", SUMS)
async def test_what_a_page_says_about_a_child_and_is_not_so_is_told(field):
    archived = await Archived().make()
    path = await forge_sums(archived, Manifest, **{field: SUMS[field]})
    said = f"{path} is not what its parent says about it (an index of {archived.heads[Manifest].head.path})"
    assert (await audit(archived, deep=True)).problems == (said,)


@pytest.mark.parametrize("kind", KINDS)
async def test_totals_that_are_not_those_of_the_objects_are_told(kind):
    archived = await Archived().make()
    document = await chain.read(archived.store, archived.heads[kind].head, kind)
    total = document.index.streams[STREAM]
    held = await held_of(Index(archived.store, kind.PAGES), document.index, STREAM)
    more = Held(count=total.held.count, runs=[(first + 1000, last + 1000) for first, last in total.held.runs])
    for changes, said in (
        ({"objects": 5}, f"5 objects of {STREAM}, and its index has {total.objects}"),
        ({"messages": 5000}, f"5,000 messages of {STREAM}, and its index has {total.messages}"),
        ({"formats": {"raw": 2}}, f"2 raw by formats of {STREAM}, and its index has "),
        ({"formats": {}}, f"none by formats of {STREAM}, and its index has "),
        ({"bytes": 5}, f"5 bytes of {STREAM}, and its index has {total.bytes:,}"),
        ({"held": Held(count=9)}, f"9 sequences of {STREAM}, and its index has {len(held)}"),
        ({"held": more}, f"sequences of {STREAM}, and its index has {held.describe()}"),
        ({"twice": Sequences.from_range(1, 2).to_text()}, f"1–2 sequences that are stored twice of {STREAM}, and its"),
        ({"twice": "AAAA"}, "is damaged: not a set of sequences"),
    ):
        wrong = {STREAM: msgspec.structs.replace(total, **changes)}
        head = await recommit(archived, kind, msgspec.structs.replace(document.index, streams=wrong))
        [problem] = (await audit(archived, deep=True)).problems
        assert problem.startswith(head.path)
        assert said in problem
        assert (await audit(archived)).ok
    for wrong in ({}, {STREAM: total, "MORE": total}):
        head = await recommit(archived, kind, msgspec.structs.replace(document.index, streams=wrong))
        [problem] = (await audit(archived, deep=True)).problems
        assert problem.startswith(f"{head.path} is wrong: it says ")


async def test_entries_in_another_order_and_sets_that_are_wrong_are_told():
    archived = await Archived().make()
    document = await chain.read(archived.store, archived.heads[Manifest].head, Manifest)
    leaf = decode(document.index.leaf, document.index.root.hex())
    broken = [msgspec.structs.replace(leaf.entries[0], sequences=b"AAAA"), *leaf.entries[1:]]
    no_set = encode(SetPage(token=1, number=1, of="x", sequences=b"AAAA"))[1]
    one = leaf.entries[0]
    wrong_sets = [
        Sequences.from_iterable(some).to_bytes()
        for some in ([], [one.first, one.last, one.last + 1], [one.first - 1, one.last], [one.last + 2**40])
    ]
    fewer = msgspec.structs.replace(one, count=0)
    longer = msgspec.structs.replace(one, last=one.last + 1, count=2)
    apart = msgspec.structs.replace(leaf.entries[0], sequences=b"", apart=await put(archived, Manifest, no_set))
    for entries, said in (
        (leaf.entries[::-1], "{leaf} is damaged: its entries are out of order"),
        (broken, f"{{leaf}} is damaged: the record of {one.path}: not a set of sequences"),
        *(
            ([wrong, *leaf.entries[1:]], f"{{leaf}} is damaged: the record of {one.path} says {wrong.count} rows from ")
            for wrong in (fewer, longer, *(msgspec.structs.replace(one, sequences=some) for some in wrong_sets))
        ),
        ([apart, *leaf.entries[1:]], f"{page_path(Manifest.PAGES, apart.apart)} is damaged: not a set of sequences"),
    ):
        name, data = encode(msgspec.structs.replace(leaf, entries=entries))
        await recommit(archived, Manifest, msgspec.structs.replace(document.index, root=name, leaf=data))
        [problem] = (await audit(archived, deep=True)).problems
        assert problem.startswith(said.format(leaf=page_path(Manifest.PAGES, name)))


@pytest.mark.parametrize("waiting", [1, 2, 100])
async def test_sums_are_the_same_however_many_sets_are_joined_at_a_time(waiting, monkeypatch):
    monkeypatch.setattr(index_audit, "MOST_WAITING", waiting)
    archived = await wide_archive(monkeypatch)
    document = await chain.read(archived.store, archived.heads[Manifest].head, Manifest)
    twice = Sequences.from_text(document.index.streams[STREAM].twice)
    assert twice
    assert (await audit(archived, deep=True)).ok
    wrong = {STREAM: msgspec.structs.replace(document.index.streams[STREAM], twice="")}
    await recommit(archived, Manifest, msgspec.structs.replace(document.index, streams=wrong))
    [problem] = (await audit(archived, deep=True)).problems
    assert f"none sequences that are stored twice of {STREAM}, and its index has {twice.describe()}" in problem


# --- leaders that go on ----------------------------------------------------------------------------------------------


async def test_an_audit_that_is_overtaken_by_clean_up_checks_the_newer_index(monkeypatch):
    archived = await wide_archive(monkeypatch)
    replaced = (await pages_of(archived, Manifest))["root"][0]
    getting = archived.store.get

    async def slow(path):
        if path == replaced:
            monkeypatch.setattr(archived.store, "get", getting)
            await store_block(archived.store, [5000], key="late")
            await archived.sweep()
            await archived.change(replaced, None)
        return await getting(path)

    monkeypatch.setattr(archived.store, "get", slow)
    assert (await audit(archived, deep=True)).problems == ()


def test_a_page_that_no_reader_would_accept_is_not_written(monkeypatch):
    monkeypatch.setattr(pages, "LARGEST", 1000)
    with pytest.raises(ManifestError, match=r"a page of the index would have .* at most 1,000 are read"):
        encode(SetPage(token=1, number=1, of="x", sequences=b"A" * 2000))


def test_records_have_the_fields_of_stored_objects():
    assert set(pages.Entry.__struct_fields__) - set(Stored.__struct_fields__) == {"apart"}

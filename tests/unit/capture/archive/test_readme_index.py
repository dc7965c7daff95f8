"""The README's description of the index is enough: its program reads trees of pages, and archives of all formats."""

import ast
import asyncio
import base64
import json
from collections import Counter, defaultdict

import msgspec
import pytest
from archived import STREAM, Archived
from hypothesis import given, settings
from hypothesis import strategies as st
from old_archives import FORMATS, SEQUENCES, unpack
from readme_programs import PAGE, PROGRAM, SETS, run
from wide_index import KINDS, WIDE, pages_of, wide_archive

from capture.archive import manifest
from capture.archive.index import page, version
from capture.archive.manifest import Manifest
from capture.archive.table import Table

FOLDERS = {Manifest: "blocks", Table: "table"}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """An archive in a folder; tests that change it put it back."""
    folder = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(wide_archive(patch, folder=folder)), folder


def newest(root, kind):
    return max((root / kind.FOLDER).iterdir())


async def test_its_program_finds_each_message_through_an_index_of_several_levels(wide):
    archived, root = wide
    for kind in KINDS:
        found = await pages_of(archived, kind)
        assert all(found.values()), found  # pages of each kind
    assert sorted(row["sequence"] for row in run(PROGRAM)["messages"](str(root))) == WIDE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["root", "inner", "leaf", "set"])
async def test_its_program_notices_a_page_that_was_changed(wide, kind, what):
    archived, root = wide
    for path in (await pages_of(archived, kind))[what][:2]:
        data = (root / path).read_bytes()
        for changed in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"x"):
            (root / path).chmod(0o644)
            (root / path).write_bytes(changed)
            with pytest.raises(AssertionError, match=f"{path.rpartition('/')[2]} was changed"):
                list(run(PROGRAM)["objects"](str(root)))
        (root / path).write_bytes(data)


async def test_its_program_notices_a_change_of_the_leaf_in_a_document(tmp_path):
    archived = await Archived(folder=tmp_path).make()
    path = tmp_path / archived.heads[Manifest].head.path
    document = json.loads(path.read_bytes())
    leaf = bytearray(base64.b64decode(document["index"]["leaf"]))
    assert leaf
    leaf[len(leaf) // 2] ^= 1
    document["index"]["leaf"] = base64.b64encode(leaf).decode()
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    with pytest.raises(AssertionError, match="was changed"):
        list(run(PROGRAM)["objects"](str(tmp_path)))


async def test_the_sums_in_a_document_are_those_that_it_describes(wide):
    """By the page's programs alone: what `streams` says is what the descriptions in the leaves add up to."""
    _, root = wide
    programs, read_set = run(PROGRAM), run(SETS)["sequences"]
    for kind in KINDS:
        document = json.loads(newest(root, kind).read_bytes())
        sums, times = defaultdict(lambda: [0, 0, 0]), defaultdict(Counter)
        for one in programs["named"](str(root), FOLDERS[kind], document):
            held = list(read_set(one["sequences"]))
            assert (held[0], held[-1], len(held)) == (one["first"], one["last"], one["count"])
            sums[one["stream"]] = [
                a + b for a, b in zip(sums[one["stream"]], (1, one["count"], one["bytes"]), strict=True)
            ]
            times[one["stream"]].update(held)
        assert list(sums) == list(document["index"]["streams"]) == [STREAM]
        total = document["index"]["streams"][STREAM]
        assert [total["objects"], total["messages"], total["bytes"]] == sums[STREAM]
        assert total["formats"] == {"parquet": total["objects"]}
        assert list(read_set(total["twice"])) == sorted(one for one, often in times[STREAM].items() if often > 1)
        held = {one for first, last in total["held"]["runs"] for one in range(first, last + 1)}
        for number, name in total["held"]["apart"].items():
            found = programs["page"](str(root), FOLDERS[kind], base64.b64decode(name))
            assert found["of"] == f"{STREAM} {number}"
            held.update(read_set(found["sequences"]))
        assert (held, total["held"]["count"]) == (set(times[STREAM]), len(times[STREAM]))


async def test_what_it_says_of_pages_and_children_is_so(wide):
    archived, root = wide
    read, named = run(PROGRAM)["page"], run(PROGRAM)["named"]
    for kind in KINDS:
        document = json.loads(newest(root, kind).read_bytes())
        placed = [
            [one["stream"], one["interval"], one["key"], one["first"], one["path"]]
            for one in named(str(root), FOLDERS[kind], document)
        ]
        assert placed == sorted(placed)
        for path in (await pages_of(archived, kind))["root"]:
            top = read(str(root), FOLDERS[kind], bytes.fromhex(path.rpartition("/")[2]))
            assert (top["children"][0]["low"], top["children"][-1]["high"]) == (placed[0], placed[-1])
            assert {one["level"] for one in top["children"]} == {top["level"] - 1}
            assert sum(one["entries"] for one in top["children"]) == len(placed)


@pytest.mark.parametrize("number", FORMATS)
async def test_its_program_reads_archives_of_earlier_formats_and_what_became_of_them(number, tmp_path):
    unpack(number, tmp_path)
    assert sorted(row["sequence"] for row in run(PROGRAM)["messages"](str(tmp_path))) == SEQUENCES


def test_its_reader_is_short_the_decoder_of_messagepack_aside():
    [decoder] = [one for one in ast.parse(PROGRAM).body if getattr(one, "name", "") == "unpack"]
    lines = PROGRAM.splitlines()
    assert decoder.end_lineno - decoder.lineno < 25
    rest = lines[: decoder.lineno - 1] + lines[decoder.end_lineno :]
    assert len([line for line in rest if line.strip()]) < 60


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4), inner, max_size=20),
    max_leaves=30,
)


unpack_value = run(PROGRAM)["unpack"]


@settings(max_examples=80, deadline=None)
@given(values)
def test_its_decoder_reads_what_is_in_pages(value):
    assert unpack_value(msgspec.msgpack.encode(value)) == (value, len(msgspec.msgpack.encode(value)))


@pytest.mark.parametrize("value", ["x" * 70_000, b"x" * 70_000, [1] * 70_000, {str(one): one for one in range(70_000)}])
def test_its_decoder_reads_large_values(value):
    assert unpack_value(msgspec.msgpack.encode(value))[0] == value


def test_it_names_every_field_of_the_index_and_its_folders():
    kinds = [page.Entry, page.Ref, page.Page, page.SetPage, version.Version, version.Total, version.Held]
    named = {name for kind in (*kinds, manifest.Outdated, manifest.Indexed) for name in kind.__struct_fields__}
    assert {name for name in named if f"`{name}`" not in PAGE} == set()
    for kind in KINDS:
        assert f"`{kind.PAGES}<sha256>`" in PAGE
    assert f"At most {page.DEEPEST}" in PAGE
    assert f"{page.LARGEST >> 20} MiB" in PAGE
    assert f"more than {page.MOST_RUNS} pairs" in PAGE

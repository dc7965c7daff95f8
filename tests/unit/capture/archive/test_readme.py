"""The description in the archive is enough: what it says is followed literally, without our code."""

import ast
import base64
import json
import os
import re
import sys
from pathlib import Path

import pytest
from archived import ARCHIVE, KEYS, SIGNER, STREAM, Archived, records, store_block
from cryptography.exceptions import InvalidSignature
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed import read_whole
from readme_programs import DECRYPTED, PAGE, PROGRAM, SETS, SIGNATURE, run
from sealed import HEADERS, block

from capture.archive import chain, iceberg_state, identity, manifest, recording, scope, signing, table
from capture.archive.encryption import Keys
from capture.archive.envelope_columns import describe_columns
from capture.archive.readme import README, VERSION, describe, text, version_of
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import STORED, describe_formats
from capture.decoders import decoder
from capture.formats import writer
from capture.formats.envelope import SCHEMA
from capture.stores import MemoryStore


def imported(code):
    names = [one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Import | ast.ImportFrom)]
    return {
        (one.module if isinstance(one, ast.ImportFrom) else alias.name).split(".")[0]
        for one in names
        for alias in one.names
    }


def test_its_programs_stand_on_python_and_one_package_each():
    assert imported(PROGRAM) - sys.stdlib_module_names == {"pyarrow"}
    assert imported(SETS) <= sys.stdlib_module_names
    assert imported(DECRYPTED) | imported(SIGNATURE) <= {"cryptography", *sys.stdlib_module_names}


@pytest.fixture
async def folder(tmp_path):
    """An archive in a folder: a table file, blocks of several formats, an entry that waits."""
    archived = Archived(SIGNER, folder=tmp_path)
    await archived.make()
    await archived.sweep()
    await archived.compact()
    for path in (await chain.read(archived.store, archived.heads[table.Table].head, table.Table)).consumed_paths:
        (tmp_path / path).unlink(missing_ok=True)  # as the sweep does some time later
    await store_block(archived.store, [20, 21, 24], writer("ndjson"))
    await store_block(archived.store, [24, 25], writer("ndjson", compression="gzip"))  # 24 was delivered again
    return archived, tmp_path


async def test_its_program_finds_each_message_byte_for_byte(folder):
    _, root = folder
    assert list((root / "table").rglob("*.parquet"))
    found = {row["sequence"]: row for row in run(PROGRAM)["messages"](str(root))}
    held = [1, 2, 3, 4, 6, 7, 8, 9, 20, 21, 24, 25]
    assert sorted(found) == held
    expected = records(held)
    for index, sequence in enumerate(held):
        row = found[sequence]
        assert (row["stream"], row["payload"]) == (STREAM, expected.payloads[index])
        assert row["time_ns"] == expected.times_ns[index]
        raw = row.get("header_block") or base64.b64decode(row.get("header_block_base64") or "")
        assert raw == expected.header_blocks[index]
        raw = row.get("subject_raw") or base64.b64decode(row.get("subject_raw_base64") or "") or row["subject"].encode()
        assert raw == expected.subjects[index]


async def test_its_program_notices_an_object_that_was_changed(folder):
    archived, root = folder
    committed = await read_whole(archived.store, archived.heads[table.Table].head, table.Table)
    file = root / committed.files[0].path
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(bytes(data))
    with pytest.raises(AssertionError, match=f"{file.name} was changed"):
        list(run(PROGRAM)["messages"](str(root)))


async def test_its_program_prints_how_many_there_are(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", str(folder[1])])
    exec(compile(PROGRAM, README, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "12 messages\n"


ranges = st.tuples(st.integers(1, 2**40), st.integers(0, 70_000)).map(lambda one: range(one[0], sum(one)))
sets = st.lists(ranges, max_size=2).map(lambda found: {number for one in found for number in one})


@settings(max_examples=25, deadline=None)
@given(sets, st.sets(st.integers(1, 2**63 - 1)), st.sampled_from([1, 2, 3]))
def test_it_reads_sets_of_sequences(dense, sparse, step):
    numbers = sparse | {number for number in dense if number % step == 0}
    found = Sequences.from_iterable(numbers)
    for written in (found.to_text(), found.to_bytes()):
        assert list(run(SETS)["sequences"](written)) == sorted(numbers)


async def test_it_checks_signatures_and_copies_in_the_history(folder):
    _, root = folder
    check, [public] = run(SIGNATURE)["check_signature"], KEYS.public.lines().values()
    paths = [path for part in ("_manifest", "_table", "_recorded") for path in (root / part).iterdir()]
    for path in paths:
        check(path.read_bytes(), ARCHIVE, str(path.relative_to(root)), public)
        with pytest.raises(InvalidSignature):
            check(
                path.read_bytes().replace(b'"number":', b'"number":1', 1), ARCHIVE, str(path.relative_to(root)), public
            )
    for path in (root / "_history").rglob("*.json"):
        check(path.read_bytes(), ARCHIVE, "_recorded/" + path.name.partition("-")[2], public)


async def test_it_opens_what_is_encrypted():
    keys = {"k": os.urandom(32)}
    store = MemoryStore("a")
    one = await store_block(store, [1, 2], writer("raw", keys=Keys(keys)))
    data = run(DECRYPTED)["decrypted"](await store.get(one.path), keys)
    assert data.startswith(b"CAPRAW1\n")
    assert json.loads(data[12 : 12 + int.from_bytes(data[8:12], "big")])["count"] == 2


def test_it_names_every_field_and_every_column():
    kinds = [
        manifest.Stored, manifest.Manifest, manifest.Removed, table.Table, iceberg_state.Iceberg,
        iceberg_state.Snapshot, chain.Retired, recording.Recording,
        recording.StreamRecord, recording.Configuration, recording.Consumer, recording.Position, recording.Earlier,
        identity.Archive, identity.Identity, identity.Signing, scope.Asked, signing.Signature,
    ]  # fmt: skip
    named = {name for kind in kinds for name in kind.__struct_fields__} | {"signature"} | set(SCHEMA.names)
    said = set(re.findall(r"[`\"](\w+)[`\"]", PAGE))
    assert named - said == set()


def test_it_names_every_place():
    for place in (
        manifest.BLOCKS, manifest.ENTRIES, manifest.TABLE, manifest.Manifest.FOLDER, table.Table.FOLDER,
        iceberg_state.ICEBERG,
        recording.Recording.FOLDER, recording.HISTORY, identity.ARCHIVE, identity.SIGNING, identity.STREAMS,
        scope.ASKED, README,
    ):  # fmt: skip
        assert f"| `{place}" in PAGE


async def test_a_node_writes_it_and_replaces_an_older_one_only():
    store = MemoryStore("a")
    await describe(store)
    assert await store.get(README) == text()
    assert version_of(text()) == VERSION
    for found, stays in (
        (b"# Messages (description 0 of a capture archive)\nold", False),
        (b"# Messages (description %d of a capture archive)\nnew" % (VERSION + 1), True),
        (b"# Messages (description %d of a capture archive)\nthis" % VERSION, True),
        (b"my own notes", True),
    ):
        await store.put(README, found, if_absent=False)
        await describe(store)
        assert await store.get(README) == (found if stays else text())


def test_the_page_is_in_the_package():
    page = Path(chain.__file__).with_name("readme.md").read_text()
    page = page.replace("{version}", str(VERSION)).replace("{columns}", describe_columns())
    assert page.replace("{formats}", describe_formats()).encode() == text()


def test_its_program_reads_messages_beside_their_values():
    kept = block((b"a", HEADERS, b'{"n":1}'))
    wanted = writer("ndjson", decode=decoder("json"), envelope="columns", compression="zstd")
    [row] = run(PROGRAM)["rows"](wanted.write(kept), wanted.format)
    assert (row["sequence"], row["payload"], row["n"]) == (100, b'{"n":1}', 1)


def test_it_says_what_each_format_allows():
    assert all(
        f"| `{name}` | `.{one.ending or name}` | {'yes' if one.restorable else 'no'} |" in PAGE
        for name, one in STORED.items()
    )

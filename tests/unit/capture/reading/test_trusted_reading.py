"""Who reads checks what the keys that are given can check: signatures, and that every object is encrypted."""

import asyncio
import shutil
import sys

import msgspec
import pytest
from archived import ARCHIVE, CREATED, KEYS, SIGNER, STREAM, Archived, store_block
from indexed import read_whole
from typer.main import get_command

import capture
from capture.archive import chain, heads, trust
from capture.archive.chain import latest_offline
from capture.archive.encryption import Keys
from capture.archive.identity import claim
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.recording import Recording
from capture.archive.scope import Asked, write_record
from capture.archive.signing import split
from capture.archive.table import Table
from capture.archive.trust import Trust, check_contents
from capture.cli.app import make_app
from capture.config.load import load
from capture.config.settings import CaptureConfig
from capture.errors import (
    CaptureError,
    CipherError,
    ConfigError,
    FormatError,
    ManifestError,
    QueryError,
    SignatureError,
)
from capture.formats import writer
from capture.maintenance.compaction_plan import Policy, plan
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.node.node import Node
from capture.reading.duck import query
from capture.reading.merge import make_look
from capture.restoring.past import Window, read_past
from capture.restoring.plan import EXACT, Options, Target
from capture.restoring.prepare import draw_plan
from capture.stores import MemoryStore, open_store
from natty import NattyError
from natty.cli.run import run

SECRET = Keys({"k": bytes(32)})
READERS = [("cat",), ("sql", "SELECT count(*) AS n FROM messages"), ("ls",), ("verify", "--offline")]


async def sealed_archive(folder):
    """An archive that is signed, and of which every object is encrypted, but for a plain table if it is compacted."""
    archived = Archived(SIGNER, folder=folder)
    await claim(archived.store, ARCHIVE, STREAM, CREATED, SIGNER)
    await write_record(archived.store, Asked(stream=STREAM, durable="capture", created=CREATED))
    await store_block(archived.store, [1, 2, 3], writer("parquet", keys=SECRET))
    await archived.sweep()
    await archived.record()
    return archived


async def plain_archive(folder):
    await Archived(SIGNER, folder=folder).make()


@pytest.fixture
def lake(tmp_path):
    """Make an archive by a coroutine; return its folder, and files of its keys."""
    (tmp_path / "ours.pub").write_text("".join(f"{name}:{key}\n" for name, key in KEYS.public.lines().items()))
    (tmp_path / "secret").write_text(f"k:{'A' * 43}=\n")
    (tmp_path / "secret").chmod(0o600)

    def make(work):
        asyncio.run(work(tmp_path / "lake"))
        return tmp_path / "lake"

    return make


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `capture …`; return exit status, output and error."""
    for name, value in {"CAPTURE_KEY_FILE": "secret", "CAPTURE_ARCHIVE": ARCHIVE, "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["capture", *words, "--store", "lake", "--stream", STREAM])
        capsys.readouterr()
        return run(get_command(make_app()), "capture", (CaptureError, NattyError)), *capsys.readouterr()

    return command


async def forge(folder, *, signed=False):
    """Put a plain block in the place of the encrypted one, and name it in the newest manifest: no key is needed."""
    store = open_store(str(folder))
    made_up = await store_block(store, [1, 2, 3, 4])
    await store.delete(made_up.path.replace("blocks/", "_entries/") + ".json")
    head = await latest_offline(store, Manifest)
    data = await store.get(head.path)
    changed = msgspec.structs.replace(chain.decode(data, head.path, Manifest), blocks=[made_up])
    data = msgspec.json.encode(changed)
    await store.put(head.path, SIGNER.sign(head.path, data) if signed else data, if_absent=False)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_every_command_refuses_what_was_forged_where_public_keys_are_given(lake, command, words):
    lake(sealed_archive)
    assert command(*words, "--public-key", "ours.pub")[0] == 0
    lake(forge)
    status, out, err = command(*words, "--public-key", "ours.pub")
    assert status == (3 if words[0] == "verify" else 1), (out, err)
    said = out if words[0] == "verify" else err
    assert "is not signed" in said
    assert "_manifest/" in said
    if words[0] != "verify":
        assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_every_command_refuses_plain_objects_where_all_are_to_be_encrypted(lake, command, words):
    lake(sealed_archive)
    assert command(*words, "--encrypted-only")[0] == 0
    lake(lambda folder: forge(folder, signed=True))  # say, a leader that was deceived
    assert command(*words, "--public-key", "ours.pub")[0] == 0
    status, out, err = command(*words, "--encrypted-only")
    assert status == (3 if words[0] == "verify" else 1)
    assert "is not encrypted, and encrypted_only is set" in (out if words[0] == "verify" else err)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_manifest_that_was_removed_is_missed_though_nobody_asks_nats(lake, command, words, tmp_path):
    folder = lake(sealed_archive)
    newest = max((folder / "_manifest").iterdir())
    newest.unlink()
    status, out, err = command(*words)
    assert status == (3 if words[0] == "verify" else 1), (out, err)
    assert "was written beside manifest 2, and the newest one is number 1" in (out if words[0] == "verify" else err)
    shutil.rmtree(folder / "_manifest")
    assert "and there is none" in "".join(command(*words)[1:])


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_objects_that_no_manifest_vouches_for_are_refused_where_public_keys_are_given(lake, command, words):
    folder = lake(sealed_archive)
    for name in ("_manifest", "_recorded", "_table"):
        shutil.rmtree(folder / name, ignore_errors=True)
    assert list((folder / "blocks").rglob("*.parquet*"))
    status, out, err = command(*words, "--public-key", "ours.pub")
    assert status == (3 if words[0] == "verify" else 1), (out, err)
    assert "and no manifest that vouches for them" in (out if words[0] == "verify" else err)


def test_sql_reads_nothing_that_is_not_what_a_signed_record_says(lake, command):
    folder = lake(plain_archive)
    asked = ("sql", "SELECT count(*) AS n FROM messages", "--public-key", "ours.pub")
    assert command(*asked)[0] == 0

    async def exchanged(folder):
        store = open_store(str(folder))
        head = await latest_offline(store, Table)
        [file] = (await read_whole(store, head, Table)).files
        block = await store_block(store, [1, 2, 3, 4], interval=file.interval)
        (folder / file.path).write_bytes((folder / block.path).read_bytes())
        await store.delete(block.path.replace("blocks/", "_entries/") + ".json")

    lake(exchanged)
    status, out, err = command(*asked)
    assert (status, out) == (1, "")
    assert "table/" in err
    assert "was changed: its SHA-256 is not the recorded one" in err
    assert folder.is_dir()


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_what_was_exchanged_after_the_check_is_not_read(tmp_path, kind):
    """The same size, and a Parquet file of capture's: only the bytes that were hashed tell."""
    archived = await Archived(folder=tmp_path / "lake" if kind == "file" else None).make()
    objects = [one for one in await make_look(archived.store, STREAM)() if one.format == "parquet"]
    contents = await check_contents(archived.store, objects)

    async def checked(*_):
        return contents

    summed = "SELECT count(*), sum(octet_length(payload)) FROM messages"
    [[count, _]] = (await query(archived.store, objects, summed, check=checked)).rows
    assert count == sum(one.count for one in objects) > 5
    for one in objects:
        changed = bytearray(await archived.store.get(one.path))
        changed[len(changed) // 2] ^= 1
        await archived.change(one.path, bytes(changed))
    with pytest.raises(FormatError, match=r"^[^ ]* was changed after it was checked: read it again"):
        await query(archived.store, objects, summed, check=checked)


async def test_ranges_of_checked_contents_are_the_object_s(monkeypatch):
    monkeypatch.setattr(trust, "PIECE_BYTES", 7)
    monkeypatch.setattr(trust, "CHUNK_BYTES", 14)
    store = MemoryStore()
    one = await store_block(store, range(1, 30))
    data = await store.get(one.path)
    contents = await check_contents(store, [one])
    for start, length in ((0, 1), (6, 2), (7, 7), (13, 30), (0, len(data)), (len(data) - 3, 10), (len(data), 5)):
        assert await contents.get_range(one.path, start, length) == data[start : start + length]
    for changed in (data[:-1], data + b"x", data[:9] + b"\0" + data[10:]):
        await store.put(one.path, changed, if_absent=False)
        with pytest.raises(FormatError, match="was changed after it was checked"):
            await contents.get_range(one.path, 0, len(data) + 1)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_sql_reads_the_bytes_that_it_has_checked(lake, command, monkeypatch, engine):
    """Somebody exchanges the objects between the check and the query: a shorter way to read them would take that."""
    folder = lake(plain_archive)
    check, asked = trust.check_contents, {}

    async def checked_then_exchanged(store, objects):
        found = await check(store, objects)
        for one in objects:
            (folder / one.path).write_bytes(b"PAR1" + bytes(one.bytes - 4))
        return found

    class Driver:
        """Spark is asked elsewhere; here counts what it is asked."""

        def __init__(self, options, key_file):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            pass

        async def query(self, store, views, sql):
            asked.update(views)
            raise QueryError("was changed after it was checked")

    monkeypatch.setattr("capture.cli.sql.check_contents", checked_then_exchanged)
    monkeypatch.setattr("capture.cli.sql.SparkDriver", Driver)
    words = ("sql", "SELECT count(*) AS n FROM messages", "--engine", engine)
    status, out, err = command(*words, "--public-key", "ours.pub")
    assert (status, out) == (1, "")
    assert "was changed after it was checked" in err
    assert [one.checked for one in asked.values()] == ([True] if engine == "spark" else [])
    command(*words)
    assert [one.checked for one in asked.values()] == ([False] if engine == "spark" else [])


# --- programs ------------------------------------------------------------------------------------------------------


async def numbers(archive, **options):
    return [one.sequence async for one in capture.read(archive, **options)]


async def test_a_program_gives_the_keys_itself_or_by_its_configuration(tmp_path):
    await sealed_archive(tmp_path / "lake")
    await forge(tmp_path / "lake")
    store = str(tmp_path / "lake")
    assert await numbers(store, keys=SECRET) == [1, 2, 3, 4]  # who gives no public key believes the documents
    with pytest.raises(SignatureError, match="is not signed"):
        await numbers(store, keys=SECRET, public_keys=KEYS.public)
    with pytest.raises(CipherError, match="is not encrypted"):
        await numbers(store, keys=SECRET, encrypted_only=True)
    with pytest.raises(CipherError, match="is not encrypted"):
        await numbers(CaptureConfig(store=store, stream=STREAM, encrypted_only=True), keys=SECRET)


async def test_what_is_signed_for_another_archive_is_refused(tmp_path):
    await sealed_archive(tmp_path / "lake")
    config = CaptureConfig(store=str(tmp_path / "lake"), stream=STREAM, archive="other")
    with pytest.raises(SignatureError, match="has a wrong signature"):
        await numbers(config, keys=SECRET, public_keys=KEYS.public)


async def test_a_restore_refuses_the_same(tmp_path):
    archived = await sealed_archive(tmp_path / "lake")
    config = CaptureConfig(store=str(tmp_path / "lake"), stream=STREAM, archive=ARCHIVE)
    target = Target(version=EXACT, streams={})
    past = await read_past(None, config, archived.store, Window())
    assert [one.path async for part in past.objects.scan() for one in part]
    await forge(tmp_path / "lake", signed=True)
    past = await read_past(None, msgspec.structs.replace(config, encrypted_only=True), archived.store, Window())
    with pytest.raises(CipherError, match="is not encrypted"):
        await draw_plan(past, Options(), target, archived.store)


async def test_with_nats_the_committed_head_vouches_and_without_one_the_store_s_newest_is_read(tmp_path):
    archived = await sealed_archive(tmp_path / "lake")
    newest = archived.heads[Manifest].head.path

    class Nats:
        """What asks NATS for a head: of this archive, or of one that it knows nothing of."""

        def __init__(self, knows):
            self.knows = knows

        def reader(self, natty, archive):
            async def read():
                return archived.heads[Manifest].head if self.knows and archive == ARCHIVE else None

            return read

    for knows in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heads, "SWEEP", Nats(knows))
            patch.setattr(heads, "COMPACTION", Nats(False))
            look = make_look(archived.store, STREAM, natty=object(), archive=ARCHIVE)
            assert [one.count for one in await look()] == [3]
            if knows:
                data = await archived.store.get(newest)
                await archived.store.delete(newest)
                with pytest.raises(ManifestError, match=f"the head names {newest}, which is not in"):
                    await look()
                await archived.store.put(newest, data)


async def test_a_sweep_that_overtakes_a_reader_is_not_taken_for_a_removed_manifest(tmp_path):
    archived = await sealed_archive(tmp_path / "lake")
    look, read = make_look(archived.store, STREAM), archived.store.list

    async def overtaken(prefix=""):
        if prefix == Recording.FOLDER and archived.store.list is overtaken:
            archived.store.list = read
            await store_block(archived.store, [4], writer("parquet", keys=SECRET))
            await archived.sweep()
            await archived.record(state={"messages": 5, "first_seq": 1, "last_seq": 4})
        return await read(prefix)

    archived.store.list = overtaken
    assert sum(one.count for one in await look()) == 4


# --- leaders and nodes ---------------------------------------------------------------------------------------------


async def test_a_leader_does_not_adopt_nor_merge_what_must_be_encrypted_and_is_not(tmp_path):
    archived = await sealed_archive(tmp_path / "lake")
    forged = await store_block(archived.store, [4, 5])
    head, table = archived.pointer(Manifest), archived.heads[Table].read
    report = await sweep(Leading(archived.store, head, table), now=archived.now, trust=Trust(encrypted_only=True))
    assert report.unreadable == [f"{forged.path} is not encrypted, and encrypted_only is set"]
    manifest = await read_whole(archived.store, archived.heads[Manifest].head, Manifest)
    assert forged.path not in [one.path for one in manifest.blocks]
    assert forged.path in await archived.paths()
    picture = Picture(msgspec.structs.replace(manifest, blocks=[forged]), Table())
    rules = {"min_files": 1, "max_wait": 0.0}
    assert plan(picture, Policy(**rules, encrypted_only=True), now=archived.now + 10**9, token=1) == []
    assert len(plan(picture, Policy(**rules), now=archived.now + 10**9, token=1)) == 1


def test_a_key_file_without_a_word_on_encryption_is_refused_where_blocks_are_written(tmp_path):
    (tmp_path / "secret").write_text(f"k:{'A' * 43}=\n")
    (tmp_path / "secret").chmod(0o600)
    flags = {"stream": "S", "store": str(tmp_path / "lake"), "key_file": str(tmp_path / "secret")}
    with pytest.raises(ConfigError, match="write encrypt = true, or encrypt = false if the keys are only for"):
        Node(load(None, flags, environment={}))
    assert Node(load(None, flags | {"encrypt": True}, environment={})).writer.format == "parquet.enc"
    assert Node(load(None, flags | {"encrypt": False}, environment={})).writer.format == "parquet"
    with pytest.raises(ConfigError, match="encrypted_only refuses plain blocks"):
        Node(load(None, flags | {"encrypt": False, "encrypted_only": True}, environment={}))
    with pytest.raises(ConfigError, match="encrypted_only refuses the plain table"):
        load(None, flags | {"encrypt": True, "encrypted_only": True, "compaction.decrypt": True}, environment={})


async def test_a_recording_says_beside_which_manifest_it_was_written(tmp_path):
    archived = await sealed_archive(tmp_path / "lake")
    data = await archived.store.get(archived.heads[Recording].head.path)
    assert split(data)[1] is not None
    assert chain.decode(data, archived.heads[Recording].head.path, Recording).of_manifest == 2

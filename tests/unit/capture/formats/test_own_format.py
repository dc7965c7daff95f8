"""A writer of the user, `module:function`: around it compression and encryption, and refused in one sentence."""

import json
import sys
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from io import BytesIO

import msgspec
import pytest
from archived import Settled
from own_code import write_module

from capture.archive.encryption import Keys
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.stored_formats import ending_of, format_of, list_limits
from capture.archive.table import Table
from capture.cli.config import limits
from capture.config.settings import CaptureConfig
from capture.decoders import decoder, values_of
from capture.errors import ConfigError, FormatError, StoreError
from capture.formats import check_writer, read_object, reader, writer
from capture.formats.contract import sample_blocks
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.keys import UNDECODABLE
from capture.stores import MemoryStore
from capture.verification.objects import read_archive

KEYS = Keys({"k": bytes(range(32))})


class Lines:
    format = "lines"

    def write(self, block):
        return b"\n".join(block.records.payloads)


class Failing(Lines):
    def write(self, block):
        raise ValueError("no dates before 1970")


class Text(Lines):
    def write(self, block):
        return "text"


class TextLater(Lines):
    """Passes the check of the start."""

    def __init__(self):
        self.blocks = 0

    def write(self, block):
        self.blocks += 1
        return b"text" if self.blocks == 1 else "text"


class Counting(Lines):
    def __init__(self):
        self.blocks = 0

    def write(self, block):
        self.blocks += 1
        return b"%d" % self.blocks


class Dotted(Lines):
    format = "lines.gz"


class Slashed(Lines):
    format = "a/b"


class Nameless:
    def write(self, block):
        return b""


class Nothing(Lines):
    def write(self, block):
        return b""


class Translated(Lines):
    """Writes each decoded value, and skips None."""

    def write(self, block):
        values = values_of(block.records, decoder("json"))
        return b"".join(json.dumps(value).encode() + b"\n" for value in values if value is not None)


class ValuesOnly(Lines):
    """Writes null for a message without a value."""

    def write(self, block):
        return json.dumps(values_of(block.records, decoder("json"))).encode()


class FirstOnly(Lines):
    def write(self, block):
        return block.records.subjects[0] + block.records.payloads[0] + b"\n"


class Asynchronous(Lines):
    async def write(self, block):
        return b"text"


class Awaitable(Lines):
    def write(self, block):
        return Asynchronous().write(block)


class NoBlock(Lines):
    def write(self):
        return b"text"


BLOCK = next(sample_blocks())[1]


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(write_module(tmp_path, "msgpack_blocks"))
    (tmp_path / "writers.py").write_text(
        "def nothing(decode): pass\ndef alone(): pass\nasync def later(decode): pass\n"
    )
    yield
    sys.modules.pop("msgpack_blocks", None)
    sys.modules.pop("writers", None)


def test_the_writer_of_the_page_gets_the_decoder_and_writes_every_block():
    made = writer("msgpack_blocks:MessagePack", decode=decoder("json"))
    assert made.format == "own-msgpack"
    check_writer(made)
    from msgpack_blocks import MessagePack

    check_writer(MessagePack(decoder("json")))


def test_an_object_is_a_writer_too_and_is_compressed_and_named_as_the_others():
    made = writer(Lines(), compression="zstd")
    assert (made.format, ending_of(made.format)) == ("own-lines.zst", "lines.zst")
    assert made.unfit == Counter()
    opened = reader(made.format).open(BytesIO(made.write(BLOCK)), BLOCK)
    assert opened.read() == b"text"


def test_an_archive_never_names_code_so_that_nobody_can_read_the_format_back():
    found = reader("own-msgpack")
    assert not found.restorable
    assert not found.identifies
    assert not any((format_of("own-msgpack").mergeable, format_of("own-parquet").columnar))
    assert len(list(list_limits("own-msgpack"))) == 3
    assert [list(list_limits(one)) for one in ("parquet", "ndjson.zst", "raw")] == [[], [], []]
    with pytest.raises(FormatError, match="msgpack is a format of your own, which capture writes and can't read"):
        found.read(b"", BLOCK)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (Failing(), "the writer Failing failed on 1 message: ValueError: no dates before 1970"),
        (TextLater(), "the writer TextLater returned str, not bytes"),
        (Nothing(), "the writer Nothing returned no bytes for 1 message"),
        (Translated(), "the writer Translated returned no bytes for 1 message"),
    ],
)
def test_a_block_that_is_not_written_is_an_error_of_the_store_so_that_its_messages_are_handed_back(made, sentence):
    with pytest.raises(StoreError, match=sentence):
        writer(made).write(BLOCK)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (Dotted(), "has the format 'lines.gz', which can't be the end of a file's name"),
        (Nameless(), "writer is a Nameless, which has no format"),
        ("writers:nothing", "returned NoneType, which has no format, write"),
        ("writers:alone", "can't be called with the decoder: too many positional arguments"),
        ("writers:later", "the writer 'writers:later' is `async def`, and capture does not await it"),
        ("writers:missing", "can't be loaded: AttributeError"),
        ("no_such_module:Writer", "can't be loaded: ModuleNotFoundError"),
        (Asynchronous(), "write of the writer Asynchronous is `async def`, but capture calls it in threads"),
        (Awaitable(), "write of the writer Awaitable returned coroutine, not bytes"),
        (Text(), "write of the writer Text returned str, not bytes"),
        (NoBlock(), "write of the writer NoBlock can't be called with a block: too many positional arguments"),
        ("avro", "the known ones are parquet, ndjson, csv, raw, and module:function"),
        ("own-lines", "there is no writer 'own-lines'"),
    ],
)
def test_a_writer_that_can_not_be_made_is_refused_with_the_reason(made, sentence):
    with pytest.raises(ConfigError, match=sentence):
        writer(made)


@pytest.mark.parametrize("envelope", ["none", "columns", "nested", "other"])
def test_an_envelope_is_not_for_a_users_writer(envelope):
    with pytest.raises(ConfigError, match=f"envelope '{envelope}' does not apply to your own format"):
        writer(Lines(), decode=decoder("json"), envelope=envelope)


def test_flatten_is_not_for_a_users_writer():
    with pytest.raises(ConfigError, match="flatten makes rows for csv"):
        writer(Lines(), flatten="writers:nothing")


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (Text(), "write of the writer Text returned str, not bytes"),
        (TextLater(), "one plain message: write returned str, not bytes"),
        (Counting(), "one plain message: the same block gave other bytes the second time"),
        (Failing(), "one plain message: ValueError: no dates before 1970"),
        (Nothing(), "one plain message: write returned no bytes for 1 message"),
        (Translated(), "one plain message: write returned no bytes for 1 message"),
        (ValuesOnly(), "one plain message: with another payload of message 9007199254740993 the bytes are the same"),
        (FirstOnly(), "empty payloads: without message 9007199254740994 the bytes are the same"),
        (Lines(), "an empty payload: write returned no bytes for 1 message"),
        (Nameless(), "writer is a Nameless, which has no format"),
        (Dotted(), "has the format 'lines.gz', which can't be the end of a file's name"),
        (Slashed(), "has the format 'a/b', which can't be the end of a file's name"),
        (Asynchronous(), "`async def`"),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else "",
)
def test_the_check_names_what_a_users_writer_does_wrong(made, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_writer(made)


def test_config_check_says_in_notes_what_an_archive_of_ones_own_code_can_not_do(tmp_path):
    (tmp_path / "writers.py").write_text("from capture.stores import MemoryStore\n")
    plain = CaptureConfig(stream="S", store="lake")
    own = CaptureConfig(stream="S", store="writers:MemoryStore", format="msgpack_blocks:MessagePack")
    assert limits(plain) == []
    assert [one.partition("`")[0].strip() for one in limits(own)] == [
        "blocks are msgpack_blocks:MessagePack: messages are not stored whole:",
        "blocks are msgpack_blocks:MessagePack: the compaction leaves these objects as they are, so they are not in the"
        " table or in Iceberg",
        "blocks are msgpack_blocks:MessagePack:",
        "no other engine can open the objects of this store: the archive has no Iceberg tables",
    ]


# --- undecodable messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [Translated(), Nothing(), Failing()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_undecodable_messages_are_stored_whole_and_not_by_a_users_writer(made, keys):
    store = MemoryStore()
    wanted = writer(made, decode=decoder("json"), compression="zstd", keys=keys)
    block = SealedBlock("S", UNDECODABLE, 0, replace(BLOCK.records, errors={0: "cut off"}), "age")
    stored = await Committer(store, wanted, Settled()).commit(block)
    layers = ".zst.enc" if keys else ".zst"
    assert (stored.format, stored.path.endswith(f".ndjson{layers}")) == (f"ndjson{layers}", True)
    (row,) = read_object(await store.get(stored.path), stored, keys).to_pylist()
    assert (row["payload"], row["error"]) == (b"text", "cut off")
    held = (await read_archive(store, Picture(Manifest(blocks=[stored]), Table()), keys=keys))["S"]
    assert (len(held.undecodable), held.incomplete, len(held.proven)) == (1, {}, 1)


def test_a_message_without_a_value_is_undecodable_for_a_users_writer():
    records = replace(BLOCK.records.select([0]), values=[None])
    wanted = writer(Lines(), decode=decoder("json"))
    wanted.retain(records)
    assert records.errors == {0: "no value to store: ValueError: the decoder returned None"}
    good = replace(BLOCK.records.select([0]), values=[{}])
    wanted.retain(good)
    assert (good.errors, good.payloads) == ({}, [b"text"])
    assert writer(Lines()).retain is None  # the decoder `raw` makes no values


# --- what verify reads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compression", "keys", "encrypts"),
    [("gzip", None, False), ("snappy", None, False), ("zstd", None, False), ("", KEYS, False), ("zstd", KEYS, True)],
)
@pytest.mark.parametrize("made", [Lines(), "ndjson"], ids=["own", "values"])
async def test_objects_that_capture_does_not_read_are_decrypted_and_decompressed(made, compression, keys, encrypts):
    store, envelope = MemoryStore(), "none" if made == "ndjson" else ""
    wanted = writer(made, decode=decoder("json"), envelope=envelope, compression=compression, keys=keys)
    good = await Committer(store, wanted, Settled()).commit(BLOCK)

    async def verified(record):
        return (await read_archive(store, Picture(Manifest(blocks=[record]), Table()), keys=keys))[BLOCK.stream]

    held = await verified(good)
    assert (held.problems, held.unchecked, len(held.stored)) == ((), (), 1)
    data = b"neither compressed nor encrypted, whatever its record says"
    data = keys.encrypt(data, BLOCK) if encrypts else data
    await store.put(good.path, data, if_absent=False)
    held = await verified(msgspec.structs.replace(good, bytes=len(data), sha256=sha256(data).hexdigest()))
    assert (len(held.problems), len(held.lost)) == (1, 1), held

"""A writer of the user, `module:function`: around it compression and encryption, and refused in one sentence."""

import sys
from collections import Counter
from io import BytesIO

import pytest
from own_code import write_module

from capture.archive.stored_formats import ending_of, format_of, list_limits
from capture.cli.config import limits
from capture.config.settings import CaptureConfig
from capture.decoders import decoder
from capture.errors import ConfigError, FormatError, StoreError
from capture.formats import check_writer, reader, writer
from capture.formats.contract import sample_blocks


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


class Counting(Lines):
    def __init__(self):
        self.blocks = 0

    def write(self, block):
        self.blocks += 1
        return b"%d" % self.blocks


class Dotted(Lines):
    format = "lines.gz"


class Nameless:
    def write(self, block):
        return b""


BLOCK = next(sample_blocks())[1]


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(write_module(tmp_path, "msgpack_blocks"))
    (tmp_path / "writers.py").write_text("def nothing(decode): pass\ndef alone(): pass\n")
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
        (Text(), "the writer Text returned str, not bytes"),
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
        ("writers:missing", "can't be loaded: AttributeError"),
        ("no_such_module:Writer", "can't be loaded: ModuleNotFoundError"),
        ("avro", "the known ones are parquet, ndjson, csv, raw, and module:function"),
        ("own-lines", "there is no writer 'own-lines'"),
    ],
)
def test_a_writer_that_can_not_be_made_is_refused_with_the_reason(made, sentence):
    with pytest.raises(ConfigError, match=sentence):
        writer(made)


def test_flatten_is_not_for_a_users_writer():
    with pytest.raises(ConfigError, match="flatten makes rows for csv"):
        writer(Lines(), flatten="writers:nothing")


@pytest.mark.parametrize(
    ("made", "sentence"), [(Text(), "write returned str"), (Counting(), "gave other bytes the second time")]
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

from datetime import UTC, datetime
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.archive.manifest import (
    Partition,
    Stored,
    block_path,
    decode_entry,
    encode,
    entry_block,
    entry_path,
    interval_folder,
    quote_key,
    table_path,
)
from capture.archive.sequences import Sequences
from capture.errors import ManifestError

NOVEMBER = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())


def stored(path="blocks/x/one.parquet", **changes):
    facts = {
        "path": path,
        "stream": "FLIGHTS",
        "key": "EWR",
        "interval": NOVEMBER,
        "first": 1,
        "last": 9,
        "count": 9,
        "bytes": 100,
        "sha256": "ab" * 32,
        "format": "parquet",
        "sequences": Sequences.from_range(1, 9).to_bytes(),
    }
    return Stored(**(facts | changes))


def test_an_entry_survives_its_encoding():
    assert decode_entry(encode(stored(node="n", stored_ns=8)), "e") == stored(node="n", stored_ns=8)


@pytest.mark.parametrize("data", [b"", b"{", b'{"version": "x"}', b"\xff\xfe", b"[]"])
def test_a_damaged_entry_is_named(data):
    with pytest.raises(ManifestError, match="_entries/7 is damaged"):
        decode_entry(data, "_entries/7")


def test_a_newer_format_is_refused_by_name_even_if_nothing_else_of_it_is_known():
    with pytest.raises(ManifestError, match="e has format 9; this version reads up to 1"):
        decode_entry(b'{"version": 9, "path": 3}', "e")


def test_fields_that_a_later_version_adds_do_not_disturb():
    data = msgspec.json.encode(msgspec.to_builtins(stored()) | {"colour": "red"})
    assert decode_entry(data, "e") == stored()


@given(st.text(st.characters(codec="utf-8"), max_size=13))
def test_a_key_survives_its_quoting_and_needs_no_more_than_plain_letters(key):
    quoted = quote_key(key)
    assert unquote(quoted, "utf-8", "surrogateescape") == key
    assert "/" not in quoted
    assert quoted.isascii()


def test_keys_are_quoted_like_this():
    assert quote_key("EWR_a-b.c") == "EWR_a-b.c"
    assert quote_key("a/b ü=~") == "a%2Fb%20%C3%BC%3D%7E"
    assert quote_key("_undecodable") == "_undecodable"


def test_a_key_that_is_too_long_for_a_file_system_is_shortened_and_stays_its_own():
    one, two = quote_key("ü" * 500 + "1"), quote_key("ü" * 500 + "2")
    assert one != two
    assert len(one) <= 200
    assert "~" in one  # quoted keys have no other: a reader sees that it is shortened


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (86_400, "date=2026-11-21"),
        (3_600, "date=2026-11-21/hour=03"),
        (900, "date=2026-11-21/hour=03/minute=00"),
        (10, "date=2026-11-21/hour=03/minute=00/second=00"),
    ],
)
def test_an_interval_is_a_folder_as_fine_as_it_is_long(seconds, expected):
    assert interval_folder(NOVEMBER, seconds) == expected


def test_paths_say_what_they_hold():
    block = block_path(Partition("FLIGHTS", "a/b", NOVEMBER, 3600), 1, 9, 9, "ab" * 32, ".parquet")
    assert block == "blocks/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/FLIGHTS-1-9-9-abababab.parquet"
    assert (
        entry_path(block)
        == "_entries/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/FLIGHTS-1-9-9-abababab.parquet.json"
    )
    assert entry_block(entry_path(block)) == block
    table = table_path(block, 12, "00ff")
    assert table == "table/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/c-12-00ff.parquet"
    assert table_path(table, 13, "01") == "table/stream=FLIGHTS/key=a%2Fb/date=2026-11-21/hour=03/c-13-01.parquet"

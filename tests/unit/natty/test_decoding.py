"""JSON that somebody else wrote: whatever it is, each place that reads it raises its own error."""

import asyncio

import pytest

from capture.archive.identity import Archive, read_record
from capture.archive.scope import Asked
from capture.errors import ManifestError
from capture.stores import MemoryStore
from natty.config.contexts import read_context
from natty.errors import BadRecordError, ConfigError, PublishError
from natty.jetstream import read_ack
from natty.kv.json_records import decode
from natty.streams.document import load_document
from natty.wire.background import map_concurrently
from natty.wire.session import ProtocolError, decode_info

BYTES = {
    "nothing": b"",
    "not UTF-8": b'{"a": "\xff"}',
    "nested": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "a number of 5 000 digits": b'{"format": ' + b"9" * 5_000 + b"}",
    "1e400": b'{"format": 1e400}',
    "a lone surrogate": b'{"format": "\\ud800"}',
    "another kind": b"7",
}


@pytest.fixture(params=BYTES)
def data(request):
    return BYTES[request.param]


def test_a_record_is_a_bad_record(data):
    with pytest.raises(BadRecordError):
        decode(data, Archive)


def test_a_record_of_just_so_many_bytes_is_read_and_one_of_more_is_not():
    assert decode(b"[12]", list[int], most_bytes=4) == [12]
    with pytest.raises(BadRecordError, match="5 bytes are more than the 4"):
        decode(b"[123]", list[int], most_bytes=4)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b'{"seq": 1}', b'{"stream": "\xff"}', b'{"seq": 1e400}', b'{"seq": ' + b"9" * 5_000 + b"}", b"7"],
)
def test_an_ack_is_no_ack(text):
    with pytest.raises(PublishError):
        read_ack(text, "orders.1")


def test_an_ack_that_is_nested_is_no_ack():
    with pytest.raises(PublishError):
        read_ack(b'{"error": ' + b"[" * 100_000, "orders.1")


@pytest.fixture(params=["nothing", "not UTF-8", "nested", "objects", "a lone surrogate", "another kind"])
def no_object(request):
    """Bytes that are not an object of JSON, whatever its keys and values mean."""
    return BYTES[request.param]


def test_an_info_breaks_the_protocol(no_object):
    with pytest.raises(ProtocolError):
        decode_info(no_object)


def test_contexts_and_configurations_are_broken_files(no_object, tmp_path):
    file = tmp_path / "file.json"
    file.write_bytes(no_object)
    with pytest.raises(ConfigError, match="is broken"):
        read_context(str(file), {})
    with pytest.raises(ConfigError, match=r"is not valid JSON|is not the configuration of a stream"):
        load_document(file)


async def test_claims_and_records_are_damaged(data):
    store = MemoryStore()
    await store.put("_archive.json", data)
    with pytest.raises(ManifestError):
        await read_record(store, "_archive.json", Archive)
    with pytest.raises(ManifestError):
        await read_record(store, "_archive.json", Asked)


async def test_of_many_questions_a_few_are_asked_at_a_time_and_the_answers_come_in_order():
    under_way, most = 0, 0

    async def ask(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    assert await map_concurrently(range(1000), ask, at_once=30) == list(range(0, 2000, 2))
    assert most == 30
    assert await map_concurrently([], ask) == []

from __future__ import annotations

import json as reference
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.decoders import Decoder, by_batch, decoder, per_message
from capture.errors import ConfigError
from capture.record import Records
from natty.message import Batch, Message


def batch(*payloads: bytes) -> Batch:
    return Batch(
        [
            (b"orders.eu", b"$JS.ACK.ORDERS.c.2.%d.%d.%d.0" % (10 + index, 1 + index, 5000 + index), b"", payload)
            for index, payload in enumerate(payloads)
        ]
    )


def length(message: Message) -> int:
    return len(message.data)


def no_odd_length(message: Message) -> int:
    if len(message.data) % 2:
        raise StopIteration("odd")
    return len(message.data)


@by_batch
def whole_batch(batch: Batch) -> Records:
    return Records.of(batch, values=["seen"] * len(batch))


def test_raw_keeps_every_payload_with_where_it_came_from() -> None:
    records = decoder("raw")(batch(b"\xff", b""))
    assert records == Records(
        "ORDERS",
        [10, 11],
        [5000, 5001],
        [b"orders.eu"] * 2,
        [b"", b""],
        [b"\xff", b""],
        [2, 2],
        [b"$JS.ACK.ORDERS.c.2.10.1.5000.0", b"$JS.ACK.ORDERS.c.2.11.2.5001.0"],
        [None, None],
    )


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that holds the functions above, as a user's would."""
    module = ModuleType("my_decoders")
    vars(module).update(length=length, whole_batch=whole_batch)
    monkeypatch.setitem(sys.modules, "my_decoders", module)
    return "my_decoders"


@pytest.mark.parametrize("decode", [decoder("raw"), decoder("json"), per_message(length)])
def test_an_empty_batch_gives_no_record(decode: Decoder) -> None:
    assert len(decode(Batch([]))) == 0


def test_a_function_of_your_own_is_named_by_its_module(own: str) -> None:
    assert decoder(f"{own}:length")(batch(b"abc")).values == [3]


def test_a_function_marked_by_batch_gets_the_whole_batch(own: str) -> None:
    assert decoder(f"{own}:whole_batch")(batch(b"a", b"b")).values == ["seen", "seen"]


def test_json_values_stand_beside_their_payloads() -> None:
    records = decoder("json")(batch(b'{"a": [1, null]}', b'"text"', b" 3 "))
    assert records.values == [{"a": [1, None]}, "text", 3]
    assert records.errors == {}


BAD = [b"", b"{", b"nil", b"\xff\xfe", b'"\xff"', b"[" * 100_000, b'{"a":1} trailing', b"\x00"]


@pytest.mark.parametrize("payload", BAD)
def test_what_is_no_json_is_an_error_and_the_others_are_decoded(payload: bytes) -> None:
    records = decoder("json")(batch(b"1", payload, b"2", payload))
    assert records.values == [1, None, 2, None]
    assert set(records.errors) == {1, 3}
    assert records.payloads[1] == payload


@given(st.lists(st.one_of(st.binary(max_size=8), st.integers(0, 9).map(lambda n: b"%d" % n)), max_size=12))
def test_json_decodes_exactly_what_a_reference_does(payloads: list[bytes]) -> None:
    records = decoder("json")(batch(*payloads))
    assert len(records.values) == len(payloads)
    for index, payload in enumerate(payloads):
        if index in records.errors:
            assert records.values[index] is None
        else:
            assert records.values[index] == reference.loads(payload)


def test_a_plain_function_decodes_message_by_message() -> None:
    assert per_message(length)(batch(b"a", b"bcd")).values == [1, 3]


def test_whatever_a_plain_function_raises_is_the_error_of_that_message() -> None:
    records = per_message(no_odd_length)(batch(b"ab", b"a", b""))
    assert records.values == [2, None, 0]
    assert records.errors == {1: "StopIteration: odd"}


def test_an_unknown_decoder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no decoder 'xml'; the known ones are raw, json, module:attribute"):
        decoder("xml")


@pytest.mark.parametrize("spec", ["no_such_module:f", "json:no_such", "json:__name__"])
def test_a_decoder_that_can_not_be_loaded_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="the decoder"):
        decoder(spec)


def test_records_can_be_selected_and_joined_with_their_errors() -> None:
    records = decoder("json")(batch(b"1", b"{", b"2", b"}"))
    picked = records.select([3, 0])
    assert (picked.sequences, picked.values, list(picked.errors)) == ([13, 10], [None, 1], [0])
    assert records.select(range(1, 3)) == records.select([1, 2])
    joined = Records()
    joined.extend(records.select(range(2)))
    joined.extend(records.select(range(2, 4)))
    assert joined == records


def test_one_record_shows_its_message() -> None:
    record = decoder("json")(batch(b'{"a": 1}'))[0]
    assert (record.stream, record.sequence, record.subject, record.value) == ("ORDERS", 10, "orders.eu", {"a": 1})
    assert record.headers == {}

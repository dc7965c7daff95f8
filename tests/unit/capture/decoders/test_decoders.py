from __future__ import annotations

import json as reference
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.decoders import by_batch, decoder, json_as, keyed, per_message
from capture.errors import ConfigError
from capture.ingest.record import Decoder, Records
from natty.wire.message import Batch, Message


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
def whole_batch(batch: Batch) -> Records[str]:
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
    with pytest.raises(ConfigError, match=r"no decoder 'xml'; the known ones are raw, json, message, module:attribute"):
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


# --- the value and the key -------------------------------------------------------------------------------------------


@keyed
def length_by_first(message: Message) -> tuple[int, str]:
    return len(message.data), chr(message.data[0])


def test_a_decoder_may_return_the_key_with_the_value() -> None:
    records = length_by_first(batch(b"abc", b"", b"b"))
    assert (records.values, records.keys) == ([3, None, 1], ["a", None, "b"])
    assert records.errors == {1: "IndexError: index out of range"}


def test_a_key_that_is_not_hashable_is_that_message_s_error() -> None:
    records = keyed(lambda message: (1, {}))(batch(b"a"))  # type: ignore[arg-type,return-value]
    assert records.errors == {0: "TypeError: unhashable type: 'dict'"}


def test_keys_are_selected_and_joined_with_their_records() -> None:
    records = length_by_first(batch(b"a", b"b", b"c"))
    assert records.select([2, 0]).keys == ["c", "a"]
    assert records.select(range(1, 3)).keys == ["b", "c"]
    joined = decoder("raw")(batch(b"x"))
    joined.extend(records)
    joined.extend(decoder("raw")(batch(b"y")))
    assert joined.keys == [None, "a", "b", "c", None]


# --- types, and the whole message ------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise LookupError("no such total")


def test_json_is_decoded_into_a_type_and_what_does_not_fit_is_an_error() -> None:
    records = json_as(Order)(batch(b'{"total":3}', b'{"total":"x"}', b"{", b'{"total":-1}', b'{"total":4,"new":1}'))
    assert records.values == [Order(3), None, None, None, Order(4)]
    assert list(records.errors) == [1, 2, 3]
    assert records.errors[1] == "ValidationError: Expected `int`, got `str` - at `$.total`"


def test_a_type_that_json_can_not_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON can't be decoded into"):
        json_as(msgspec.defstruct("Odd", [("either", list[int] | set[int])]))


def test_a_type_of_your_own_is_a_decoder(own: str) -> None:
    vars(sys.modules[own])["Order"] = Order
    assert decoder(f"{own}:Order")(batch(b'{"total":3}')).values == [Order(3)]


def test_the_whole_message_is_a_value() -> None:
    headers = b"NATS/1.0\r\nA: 1\r\nA: \xff\r\n\r\n"
    raw = [
        (b"o.\xff", b"$JS.ACK.ORDERS.c.2.10.1.1792540800123456789.0", headers, b"text"),
        (b"o", b"$JS.ACK.ORDERS.c.1.11.2.1.0", b"", b"\xff"),
    ]
    first, second = decoder("message")(Batch(raw)).values
    assert (first.stream, first.sequence, first.time_ns, first.deliveries) == ("ORDERS", 10, 1792540800123456789, 2)
    assert (first.subject, first.headers) == ("o.\ufffd", {"A": ["1", "\ufffd"]})
    assert first.time.isoformat() == "2026-10-21T00:00:00.123456+00:00"
    assert (first.data, first.data_base64) == ("text", None)
    assert (second.data, second.data_base64) == (None, "/w==")


# --- a decoder of batches that fails ---------------------------------------------------------------------------------


def fails_on_bad(found: Batch) -> Records[Any]:
    if b"bad" in found.payloads:
        raise KeyError("bad")
    return Records.of(found, list(found.payloads))


def loses_bad(found: Batch) -> Records[Any]:
    return Records.of(Batch([raw for raw in found.raw if raw[3] != b"bad"]))


@pytest.mark.parametrize(
    ("function", "why"),
    [(fails_on_bad, "KeyError: 'bad'"), (loses_bad, "ValueError: 0 records were returned for 1 message")],
)
def test_a_decoder_of_batches_that_fails_loses_only_the_bad_ones(own: str, function: Any, why: str) -> None:
    vars(sys.modules[own])["f"] = by_batch(function)
    records = decoder(f"{own}:f")(batch(b"a", b"bad", b"b"))
    assert records.payloads == [b"a", b"bad", b"b"]
    assert records.sequences == [10, 11, 12]
    assert records.errors == {1: why}


def test_a_decoder_of_batches_is_called_once_where_it_does_not_fail(own: str) -> None:
    sizes: list[int] = []

    def counting(found: Batch) -> Records[Any]:
        sizes.append(len(found))
        return Records.of(found)

    vars(sys.modules[own])["f"] = by_batch(counting)
    decoder(f"{own}:f")(batch(b"a", b"b"))
    assert sizes == [2]

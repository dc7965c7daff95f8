from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.config.units import parse_time
from natty.consuming.dead_letters.box import headers_again
from natty.consuming.dead_letters.letter import (
    MAX_HEADER_BYTES,
    BadLetterError,
    LetterFilter,
    Original,
    digest_of,
    fit,
    headers_of,
    one_line,
    prefix_of,
    read_letter,
    reason_of,
    rfc3339,
    subject_of,
)
from natty.jetstream import StoredMessage
from natty.names import BadNameError
from natty.wire.message import encode_headers, parse_headers

PREFIX = prefix_of("DEAD_LETTERS")
ORDER = Original(
    stream="ORDERS",
    sequence=42,
    subject="orders.eu.1",
    headers={"Nats-Msg-Id": ["m-42"], "Nats-TTL": ["60"], "Nats-Rollup": ["sub"], "Colour": ["red", "blue"]},
    data=b"payload",
    time_ns=1_795_262_173_212_367_975,
    deliveries=3,
)
NAMES = st.text(st.characters(codec="ascii", exclude_characters=": \t\r\n\0", min_codepoint=33), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.strip)


def stored(original, headers, sequence=7):
    subject = subject_of(PREFIX, original, "mailer")
    return StoredMessage(subject, sequence, original.data, encode_headers(headers), "2026-11-21T11:56:13.222135558Z")


def letter_of(original, reason="why", error=None, room=MAX_HEADER_BYTES):
    return read_letter(stored(original, headers_of(original, "mailer", reason, error, room)))


def failure(message="it broke"):
    def inner():
        raise ValueError(message)

    try:
        inner()
    except ValueError as error:
        return error


def test_a_letter_tells_everything_about_its_original():
    letter = letter_of(ORDER, "retries exhausted", failure())
    assert (letter.sequence, letter.stream, letter.consumer, letter.original_sequence) == (7, "ORDERS", "mailer", 42)
    assert (letter.subject, letter.data, letter.deliveries) == ("orders.eu.1", b"payload", 3)
    assert parse_time(letter.time) == ORDER.time_ns
    assert letter.headers == ORDER.headers
    assert (letter.reason, letter.error) == ("retries exhausted", "ValueError: it broke")
    assert len(letter.digest) == 12
    assert letter.traceback[-1] == "ValueError: it broke"
    assert letter.complete
    assert letter.has_payload


def test_names_of_headers_that_nobody_may_publish_do_not_keep_a_letter_from_being_written():
    headers = {"a b": ["1"], " c": ["2"], "": ["3"], "d\ne": ["4"], "f\rg": ["5"], "h\x00": ["6"]}
    letter = letter_of(replace(ORDER, headers=headers))
    assert letter.headers == {"a b": ["1"], " c": ["2"], "": ["3"], "d e": ["4"], "f g": ["5"], "h\x00": ["6"]}


def test_no_header_of_the_original_acts_on_the_letter():
    headers = headers_of(ORDER, "mailer", "why", None, MAX_HEADER_BYTES)
    assert [name for name in headers if name.startswith("Nats-")] == ["Nats-Msg-Id"]
    assert headers["Nats-Msg-Id"] != "m-42"


def test_a_letter_about_a_letter_keeps_both_apart():
    first = headers_of(ORDER, "mailer", "the first reason", None, MAX_HEADER_BYTES)
    raw = parse_headers(encode_headers(first))
    second = Original("DEAD_LETTERS", 7, subject_of(PREFIX, ORDER, "mailer"), raw, b"payload", 1, 1)
    letter = read_letter(
        StoredMessage(
            subject_of(PREFIX, second, "undertaker"),
            8,
            b"payload",
            encode_headers(headers_of(second, "undertaker", "the second reason", None, MAX_HEADER_BYTES)),
            "2026-11-21T11:56:13Z",
        )
    )
    assert (letter.reason, letter.stream, letter.consumer) == ("the second reason", "DEAD_LETTERS", "undertaker")
    assert letter.headers == raw
    assert letter.subject == subject_of(PREFIX, ORDER, "mailer")


def test_a_message_that_was_gone_says_so():
    gone = Original("ORDERS", 42, deliveries=3)
    headers = headers_of(gone, "mailer", "max deliveries", None, MAX_HEADER_BYTES)
    assert headers["Natty-Dead-Payload"].startswith("gone")
    letter = read_letter(stored(gone, headers))
    assert not letter.has_payload
    assert (letter.stream, letter.original_sequence, letter.time) == ("ORDERS", 42, "")


@pytest.mark.parametrize("wrong", [{"Natty-Dead-Deliveries": "many"}, {"Natty-Dead-Traceback": "[1"}, None])
def test_what_is_no_letter_is_named(wrong):
    subject = subject_of(PREFIX, ORDER, "mailer") if wrong else f"{PREFIX}.ORDERS.mailer.x"
    with pytest.raises(BadLetterError, match=r"message 7 of the dead letters.*is not a letter.*Delete it"):
        read_letter(StoredMessage(subject, 7, b"", encode_headers(wrong or {}), "2026-11-21T11:56:13Z"))


@given(headers=st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=8), reason=st.text())
def test_any_headers_come_back_as_they_were(headers, reason):
    original = Original("ORDERS", 42, "orders.eu", headers, b"", 1, 1)
    assert letter_of(original, reason).headers == headers


@given(
    headers=st.dictionaries(NAMES, VALUES, max_size=12),
    room=st.integers(0, 400),
)
def test_what_fits_never_exceeds_the_room_and_counts_what_is_missing(headers, room):
    whole = {name: value for name, value in headers.items() if value and not name.startswith("Natty-Dead-")}
    fitting = fit(whole, room)
    if fitting:
        assert len(encode_headers(fitting)) <= room
    left_out = int(fitting.pop("Natty-Dead-Left-Out", 0))
    if fitting:
        assert left_out == len(whole) - len(fitting)
    assert fitting.items() <= whole.items()


def test_the_traceback_goes_first_and_the_originals_headers_last():
    error = failure()
    whole = headers_of(ORDER, "mailer", "why", error, MAX_HEADER_BYTES)
    size = len(encode_headers(whole))
    shorter = headers_of(ORDER, "mailer", "why", error, size - 1)
    assert set(whole) - set(shorter) == {"Natty-Dead-Traceback"}
    few = headers_of(ORDER, "mailer", "why", error, 300)
    assert {name for name in whole if name.startswith("Natty-Original-")} <= set(few)
    assert "Natty-Dead-Stream" not in few
    letter = read_letter(stored(ORDER, few))
    assert (letter.stream, letter.consumer, letter.original_sequence) == ("ORDERS", "mailer", 42)
    assert letter.headers == ORDER.headers
    assert int(few["Natty-Dead-Left-Out"]) == len(whole) - len(few) + 1
    assert not letter.complete


def test_headers_stay_bounded_whatever_the_error_and_the_reason_are():
    error = failure("line\n" * 500_000)
    headers = headers_of(ORDER, "mailer", "why " * 500_000, error, MAX_HEADER_BYTES)
    assert len(encode_headers(headers)) < 6000
    assert "Natty-Dead-Left-Out" not in headers


@pytest.mark.parametrize("text", ["two\r\nlines", "\x1b[31mred\x00", "lone \udc80 surrogate", "spaces   and\ttabs "])
def test_a_reason_is_one_line_that_a_terminal_can_show(text):
    line = one_line(text, 100)
    assert line.isprintable()
    line.encode()


def test_the_digest_is_the_same_for_the_same_failure_and_no_other():
    def other():
        raise ValueError("it broke")

    assert digest_of(failure("order 1")) == digest_of(failure("order 2"))
    with pytest.raises(ValueError) as caught:
        other()
    assert digest_of(caught.value) != digest_of(failure())
    with pytest.raises(RuntimeError) as wrapped:
        raise RuntimeError from failure()
    with pytest.raises(RuntimeError) as bare:
        raise RuntimeError
    assert digest_of(wrapped.value) != digest_of(bare.value)


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_times_keep_their_nanoseconds(time_ns):
    text = rfc3339(time_ns)
    assert parse_time(text) == time_ns
    whole, _, fraction = text.removesuffix("Z").partition(".")
    cut = fraction.rstrip("0")
    assert parse_time(f"{whole}.{cut}Z" if cut else f"{whole}Z") == time_ns


def test_a_retry_has_the_originals_headers_but_no_instructions_to_the_server():
    headers = headers_again(letter_of(ORDER))
    assert headers["Colour"] == ["red", "blue"]
    assert headers["Nats-TTL"] == ["60"]
    assert headers["Natty-Retried-Msg-Id"] == ["m-42"]
    assert headers["Natty-Retry-For"] == "mailer"
    assert headers["Nats-Msg-Id"] not in ("m-42", ["m-42"])
    assert "Nats-Rollup" not in headers
    assert headers_again(letter_of(ORDER)) == headers, "the same letter has the same message id"


def test_a_retry_of_what_died_again_still_tells_the_first_message_id():
    raw = parse_headers(encode_headers(headers_again(letter_of(ORDER))))
    again = headers_again(letter_of(Original("ORDERS", 43, "orders.eu.1", raw, b"payload", 1, 1)))
    assert again["Natty-Retry-For"] == "mailer"
    assert again["Natty-Retried-Msg-Id"] == ["m-42"]
    assert again["Nats-Msg-Id"] != raw["Nats-Msg-Id"][0]


def test_a_filter_is_one_of_names():
    assert LetterFilter(stream="A").subject(PREFIX) == "$NATTY.DEAD_LETTERS.A.*.>"
    assert LetterFilter(consumer="b").subject(PREFIX) == "$NATTY.DEAD_LETTERS.*.b.>"
    assert LetterFilter(reason="WHY").takes(letter_of(ORDER, "this is why"))
    for wrong in ({"stream": "A.*"}, {"consumer": ">"}):
        with pytest.raises(BadNameError):
            LetterFilter(**wrong)


class Unspeakable(Exception):
    def __str__(self):
        raise ZeroDivisionError


def test_a_reason_can_be_had_of_any_error_and_logged():
    assert reason_of(ValueError("no \udcff")) == r"ValueError: no \xff"
    assert reason_of(Unspeakable()) == "Unspeakable, whose text can't be had: ZeroDivisionError"
    assert headers_of(ORDER, "mailer", "why", Unspeakable(), MAX_HEADER_BYTES)["Natty-Dead-Error"].startswith("Unsp")

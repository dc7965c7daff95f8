import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.errors import BadSubjectError
from natty.message import Acks, Batch, Message, ack_tokens, check_subject, encode_headers, parse_headers, status_of

OLD = b"$JS.ACK.ORDERS.billing.3.41.17.1795000000123456789.5"
NEW = b"$JS.ACK.hub.ACCHASH.ORDERS.billing.3.41.17.1795000000123456789.5"
NEWEST = NEW + b".random"


class Recorder:
    """Takes what a message sends."""

    def __init__(self):
        self.sent = []

    def send(self, subject, data):
        self.sent.append((subject, data))


def message(reply=OLD, headers=b"", connection=None):
    return Message((b"orders.new", reply, headers, b"payload"), connection)


@pytest.mark.parametrize("reply", [OLD, NEW, NEWEST])
def test_an_ack_subject_of_any_age_tells_stream_sequence_time_and_deliveries(reply):
    one = message(reply)
    assert (one.stream, one.sequence, one.time_ns, one.deliveries) == ("ORDERS", 41, 1795000000123456789, 3)
    assert ack_tokens(reply)[3] == b"billing"


@pytest.mark.parametrize("reply", [OLD, NEW, NEWEST])
def test_a_batch_has_the_same_facts_as_columns(reply):
    batch = Batch([(b"a", reply, b"", b"1"), (b"b", reply, b"NATS/1.0\r\n\r\n", b"2")])
    assert (batch.sequences, batch.deliveries, batch.times_ns) == ([41, 41], [3, 3], [1795000000123456789] * 2)
    assert (batch.subjects, batch.payloads, batch.streams) == ([b"a", b"b"], [b"1", b"2"], [b"ORDERS"] * 2)
    assert batch.header_blocks == [b"", b"NATS/1.0\r\n\r\n"]
    assert repr(batch) == "Batch(2 messages, sequences 41–41)"
    assert repr(Batch([])) == "Batch(empty)"
    assert [one.data for one in batch] == [b"1", b"2"]


def test_a_batch_of_ack_subjects_of_several_ages_has_columns_too():
    replies = [OLD, NEW, NEWEST, OLD.replace(b".41.17.", b".42.18.")]
    batch = Batch([(b"a", reply, b"", b"") for reply in replies])
    assert (batch.sequences, Acks(replies).column(6)) == ([41, 41, 41, 42], [b"17", b"17", b"17", b"18"])
    assert (batch.streams, batch.deliveries) == ([b"ORDERS"] * 4, [3] * 4)
    assert Batch([]).sequences == []


def test_every_value_of_a_repeated_header_is_kept_in_order():
    assert parse_headers(b"NATS/1.0\r\nA: 1\r\nB:x: y\r\nA:2\r\n\r\n") == {"A": ["1", "2"], "B": ["x: y"]}


@given(
    st.dictionaries(
        st.text("abc-XYZ019", min_size=1),
        st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1),
    )
)
def test_headers_survive_encoding(headers):
    stripped = {name: [value.strip(" \t") for value in values] for name, values in headers.items()}
    assert parse_headers(encode_headers(headers)) == stripped


@pytest.mark.parametrize("headers", [{"A": "x\r\nB: y"}, {"A\n": "x"}, {"A": ["x", "y\n"]}])
def test_a_line_break_in_a_header_is_refused(headers):
    with pytest.raises(ValueError, match="line break"):
        encode_headers(headers)


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0 409 Consumer Deleted\r\nX: y\r\n\r\n", (409, "Consumer Deleted")),
        (b"NATS/1.0\r\nX: y\r\n\r\n", (0, "")),
        (b"", (0, "")),
    ],
)
def test_the_status_of_a_header_block(block, status):
    assert status_of(block) == status


def test_a_message_is_settled_once():
    connection = Recorder()
    one = message(connection=connection)
    one.in_progress()
    assert not one.settled
    one.ack()
    one.nak()
    assert connection.sent == [(OLD, b"+WPI"), (OLD, b"+ACK")]
    assert one.settled


def test_nak_and_term_say_when_and_why():
    connection = Recorder()
    message(connection=connection).nak(1.5)
    message(connection=connection).nak()
    message(connection=connection).term("no such order")
    assert [answer for _, answer in connection.sent] == [b'-NAK {"delay": 1500000000}', b"-NAK", b"+TERM no such order"]


def test_a_message_that_came_from_no_connection_says_so():
    with pytest.raises(RuntimeError, match="no connection"):
        message().ack()


def test_the_message_id_is_read_from_the_headers():
    assert message(headers=b"NATS/1.0\r\nNats-Msg-Id: a-1\r\n\r\n").msg_id == "a-1"
    assert message().msg_id is None
    assert repr(message()) == "Message('orders.new', sequence=41, 7 bytes)"


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("", "empty token"),
        ("a..b", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a b", "blank"),
        ("a\r\nPING", "blank"),
        ("a.\x00", "control character"),
        ("a.*", "wildcard"),
        ("a.>", "wildcard"),
    ],
)
def test_a_subject_that_would_break_the_protocol_is_refused(subject, words):
    with pytest.raises(BadSubjectError, match=words):
        check_subject(subject)


@pytest.mark.parametrize("subject", ["a", "orders.eu.1", "$KV.b.k/1=2", "größe.x", "a*b.c>d"])
def test_any_other_subject_is_taken(subject):
    assert check_subject(subject) == subject.encode()

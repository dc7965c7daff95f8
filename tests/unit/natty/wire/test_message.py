import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.errors import BadSubjectError
from natty.names import check_subject, delivered_subject, wire_word
from natty.wire.ack import Acks, ack_tokens
from natty.wire.message import Batch, Message, as_payload, encode_headers, parse_headers, status_of

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
    assert repr(Batch([])) == "Batch(0 messages)"
    assert repr(Batch([(b"a", b"", b"", b"1"), (b"a", b"_INBOX.b", b"", b"1")])) == "Batch(2 messages)"
    assert [one.data for one in batch] == [b"1", b"2"]


def test_a_batch_of_ack_subjects_of_several_ages_has_columns_too():
    replies = [OLD, NEW, NEWEST, OLD.replace(b".41.17.", b".42.18.")]
    batch = Batch([(b"a", reply, b"", b"") for reply in replies])
    assert (batch.sequences, Acks(replies).column(6)) == ([41, 41, 41, 42], [b"17", b"17", b"17", b"18"])
    assert (batch.streams, batch.deliveries) == ([b"ORDERS"] * 4, [3] * 4)
    assert Batch([]).sequences == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"$JS.ACK.S.C.", b"$JS.ACK.S,x.C.", b"$JS.ACK.hub.hash.S.C."]),
            st.tuples(*[st.integers(0, 2**63 - 1)] * 5),
        ),
        max_size=5,
    )
)
def test_a_batch_of_columns_has_the_same_facts_as_one_of_messages(made):
    raw = [(b"s%d" % at, start + b".".join(b"%d" % one for one in numbers), b"h" * at, b"p" * at)
           for at, (start, numbers) in enumerate(made)]  # fmt: skip
    columns = [list(column) for column in zip(*raw, strict=True)] or [[], [], [], []]
    for batch in (Batch(raw), Batch.of_columns(*columns), Batch.join([Batch([one]) for one in raw])):
        assert (batch.raw, len(batch)) == (raw, len(made))
        assert [batch.subjects, batch.replies, batch.header_blocks, batch.payloads] == columns
        assert batch.deliveries == [numbers[0] for _, numbers in made]
        assert batch.sequences == [numbers[1] for _, numbers in made]
        assert batch.times_ns == [numbers[3] for _, numbers in made]
        assert batch.size == sum(len(one) for each in raw for one in each)


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


@pytest.mark.parametrize("headers", [{1: "x"}, {"A": 1}, {"A": ["x", 2]}, {"A": b"x"}, {b"A": "x"}])
def test_a_header_that_is_not_text_is_named(headers):
    with pytest.raises(TypeError, match=r"header b?'?[A1]'?: its name and its value must be str and are"):
        encode_headers(headers)


def test_a_colon_in_a_headers_name_can_not_smuggle_another_header_in():
    with pytest.raises(ValueError, match="'A: b, Nats-Rollup' has a colon in its name"):
        encode_headers({"A: b, Nats-Rollup": "all"})


@pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]])
def test_data_like_bytes_is_copied(data):
    payload = as_payload(data)
    assert (payload, type(payload)) == (b"abc", bytes)


@pytest.mark.parametrize("data", ["text", None, 7, ["a"], {"a": 1}, object()])
def test_data_that_is_not_bytes_is_named_with_what_to_do(data):
    with pytest.raises(TypeError, match=rf"must be bytes and is of type {type(data).__name__}: encode it"):
        as_payload(data)


@pytest.mark.parametrize("text", ["a\r\nPUB b 0", "a\nb", "a b", "a\tb", "a\rb", "", b"a\r\n", b"a b", b"", "a\ud800"])
def test_a_word_that_would_end_its_line_is_refused(text):
    with pytest.raises(BadSubjectError):
        wire_word(text)


@pytest.mark.parametrize("text", ["a", "a.*.>", "$JS.API.INFO", "größe", b"a.\xff", "a.\udcff", "\u00a0", "a\x00\x1b"])
def test_any_other_word_goes_over_the_wire_as_it_is(text):
    assert wire_word(text) == (text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0 409 Consumer Deleted\r\nX: y\r\n\r\n", (409, "Consumer Deleted")),
        (b"NATS/1.0\r\nX: y\r\n\r\n", (0, "")),
        (b"NATS/1.0 abc\r\n\r\n", (0, "")),
        (b"NATS/1.0 \xff\xfe\xfd x\r\n\r\n", (0, "")),
        (b"NATS/1.0 5033 x\r\n\r\n", (0, "")),
        (b"NATS/1.0 -50\r\n\r\n", (0, "")),
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
    message(connection=connection).term("lone \ud800")
    assert [answer for _, answer in connection.sent] == [
        b'-NAK {"delay": 1500000000}',
        b"-NAK",
        b"+TERM no such order",
        b"+TERM lone \\ud800",
    ]


@pytest.mark.parametrize("settle", [lambda one: one.nak("soon"), lambda one: one.term(b"why"), lambda one: one.term(7)])
def test_a_message_that_is_settled_with_a_wrong_type_is_not_settled(settle):
    one = message(connection=Recorder())
    with pytest.raises(TypeError):
        settle(one)
    assert (one.settled, one._connection.sent) == (False, [])


def test_a_message_that_came_from_no_connection_says_so():
    with pytest.raises(RuntimeError, match=r"messages of read\(\) need no ack"):
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


@pytest.mark.parametrize("subject", [b"a.\xff", b"\xed\xa0\x80", b"a.\x1b[2J", b"a\x00", b"a.*", "a.\u2003b".encode()])
def test_a_delivered_subject_is_text_that_gives_the_same_bytes_again(subject):
    message = Message((subject, b"$JS.ACK.S.c.1.7.7.1.0", b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n", b""))
    assert delivered_subject(message.subject) == subject
    assert encode_headers(message.headers) == b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n"
    repr(message).encode()
    assert "\x1b" not in repr(message)


@pytest.mark.parametrize("subject", ["", "a..b", "a.", "a b", "a\tb", "a\r\nPUB x 0", "a.\ud800"])
def test_no_message_was_delivered_on_what_would_break_the_protocol(subject):
    with pytest.raises(BadSubjectError):
        delivered_subject(subject)


def test_a_surrogate_that_stands_for_no_byte_is_no_subject():
    with pytest.raises(BadSubjectError, match="UTF-8 can't encode"):
        check_subject("a.\ud800")

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import Parser as StockParser

from natty.wire import alike as alike_messages
from natty.wire import session
from natty.wire.alike import Runs
from natty.wire.session import MAX_LINE_BYTES, MAX_MESSAGE_BYTES, Parser, ProtocolError

TOKEN = st.text("abcXYZ019_-$", min_size=1, max_size=8)
SUBJECT = st.lists(TOKEN, min_size=1, max_size=4).map(lambda tokens: ".".join(tokens).encode())
REPLY = st.one_of(st.just(b""), SUBJECT)
# Payloads that look like the protocol itself are the hard ones.
PAYLOAD = st.one_of(
    st.binary(max_size=60), st.sampled_from([b"", b"\r\n", b"PING\r\n", b"MSG a 1 0\r\n\r\n", b"-ERR 'x'\r\n"])
)
HEADERS = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n"])


@st.composite
def operations(draw):
    """One operation of a valid stream: (bytes, the message in it or None)."""
    kind = draw(st.sampled_from(["msg", "msg", "hmsg", "ping", "pong", "ok"]))
    if kind in ("ping", "pong", "ok"):
        return {"ping": b"PING\r\n", "pong": b"PONG\r\n", "ok": b"+OK\r\n"}[kind], None
    subject, reply, data, sid = draw(SUBJECT), draw(REPLY), draw(PAYLOAD), draw(st.integers(1, 3))
    head = draw(HEADERS) if kind == "hmsg" else b""
    words = [subject, b"%d" % sid, *([reply] if reply else []), *([b"%d" % len(head)] if head else [])]
    line = b" ".join([kind.upper().encode(), *words, b"%d" % (len(head) + len(data))])
    return line + b"\r\n" + head + data + b"\r\n", (sid, subject, reply, head, data)


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


class Stock:
    """Records what nats-py's own parser reads."""

    def __init__(self):
        self.seen = []

    async def _process_msg(self, sid, subject, reply, data, header):
        self.seen.append((sid, subject, reply, header or b"", data))

    async def _process_ping(self): ...
    async def _process_pong(self): ...


def stock(chunks):
    async def run():
        recorder = Stock()
        parser = StockParser(recorder)
        for chunk in chunks:
            await parser.parse(chunk)
        return recorder.seen

    return asyncio.run(run())


def raw_of(batch):
    """Return the messages of a batch, whose size is known before they are looked at."""
    size = batch.size
    assert size == sum(len(part) for raw in batch.raw for part in raw)
    return batch.raw


def ours(chunks):
    """Return (messages, control lines, everything in the order it was handed out)."""
    messages, lines, order = [], [], []

    def deliver(sid, batch):
        messages.extend((int(sid), *raw) for raw in raw_of(batch))
        order.extend(["message"] * len(batch))

    def control(line):
        lines.append(line)
        order.append(line)

    parser = Parser(deliver, control)
    for chunk in chunks:
        parser.feed(chunk)
    return messages, lines, order


@settings(max_examples=150, deadline=None)
@given(st.lists(operations(), max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_a_valid_stream_cut_anywhere_gives_the_messages_that_nats_py_reads(stream, places):
    chunks = cut(b"".join(data for data, _ in stream), places)
    expected = [message for _, message in stream if message is not None]
    by_sid = sorted(ours(chunks)[0], key=lambda message: message[0])  # order holds within a subscription
    assert by_sid == sorted(stock(chunks), key=lambda message: message[0])
    assert by_sid == sorted(expected, key=lambda message: message[0])


@settings(max_examples=50, deadline=None)
@given(st.lists(operations(), max_size=12))
def test_a_control_line_comes_after_the_messages_before_it(stream):
    kinds = ["message" if message else data.strip() for data, message in stream]
    assert ours([b"".join(data for data, _ in stream)])[2] == kinds


def test_every_byte_alone_gives_the_same():
    data = b"MSG a.b 1 r 5\r\nhello\r\nHMSG c 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n"
    assert ours([bytes([byte]) for byte in data]) == ours([data])


def test_cut_in_two_at_any_byte_it_gives_the_same():
    data = b"MSG a.b 1 r 5\r\nhello\r\nMSG b 1 0\r\n\r\nHMSG c 2 16 18\r\nNATS/1.0 503\r\n\r\n\r\n\r\nPONG\r\n"
    data += b"MSG d 3 2\r\n\r\n\r\n"
    whole = ours([data])
    assert (len(whole[0]), whole[1]) == (4, [b"PONG"])
    for place in range(len(data) + 1):
        assert ours([data[:place], data[place:]]) == whole, place


class Counting(Parser):
    """Counts how often a buffer is looked at, and its bytes."""

    looks = looked_at = 0

    def _split(self, buffer, position, until):
        self.looks += 1
        self.looked_at += len(buffer) - position
        return super()._split(buffer, position, until)


def test_a_large_payload_over_many_reads_is_looked_at_twice():
    size, sizes = 1024 * 1024, []
    parser = Counting(lambda sid, batch: sizes.extend(map(len, batch.payloads)), sizes.append)
    data = b"MSG big 1 %d\r\n" % size + b"x" * size + b"\r\nPING\r\n"
    for start in range(0, len(data), 1024):
        parser.feed(data[start : start + 1024])
    assert sizes == [size, b"PING"]
    assert parser.looks <= 3  # and not joined at each of the 1025 reads


# --- messages that are alike, which are split together ---------------------------------------------------------------


def message(subject, sid, reply, head, data):
    """Return a message as the server sends it."""
    words = [b"HMSG" if head else b"MSG", subject, sid, *([reply] if reply else [])]
    words += [*([b"%d" % len(head)] if head else []), b"%d" % (len(head) + len(data))]
    return b" ".join(words) + b"\r\n" + head + data + b"\r\n"


def alike(number, *, reply=True, head=False, size=20):
    """Return many messages of one subscription that differ in their words, header values and payloads."""
    return [
        message(
            b"orders.%d" % (at % 7),
            b"12",
            b"$JS.ACK.S.C.1.%d.1.5.0" % at if reply else b"",
            b"NATS/1.0\r\nNats-Msg-Id: %d\r\nA: b:%d\r\n\r\n" % (at, at) if head else b"",
            b"%d" % at * (at % size),
        )
        for at in range(number)
    ]


@pytest.mark.parametrize("reply", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_messages_that_are_alike_are_split_together_and_give_the_same(reply, head):
    made = alike(300, reply=reply, head=head)
    data, positions, found = b"".join(made), [], []

    class Noting(Parser):
        def _split(self, buffer, position, until):
            positions.append((position, len(buffer)))
            return super()._split(buffer, position, until)

    parser = Noting(lambda sid, batch: found.extend((int(sid), *raw) for raw in batch.raw), lambda line: None)
    parser.feed(data)
    assert positions == [(len(data), len(data))]
    assert found == stock([data]) == ours(made)[0]


STATUS = message(
    b"_INBOX.1", b"12", b"", b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 1\r\n\r\n", b""
)


class OneByOne(Parser):
    """Counts the messages that are split one by one."""

    def __init__(self):
        self.single, self.calls = 0, []
        super().__init__(lambda sid, batch: self.calls.append((sid, batch)), lambda line: None)

    def _split(self, buffer, position, until):
        before, self.calls = self.calls, []
        found = super()._split(buffer, position, until)
        self.single += sum(len(batch) for _, batch in self.calls)
        self.calls = before + self.calls
        return found

    @property
    def found(self):
        return [(int(sid), *raw) for sid, batch in self.calls for raw in batch.raw]


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(
    "odd",
    [
        STATUS,
        b"PING\r\n",
        message(b"_INBOX.2", b"9", b"", b"", b"an answer"),
        alike(1, head=True)[0],
        message(b"orders.1", b"12", b"r", b"", b"a line\r\nand another"),
        message(b"orders.1", b"12", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"fewer headers"),
        message(b"orders.1", b"12", b"r", b"", b"x" * 2000),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2, 150, 298, 299])
def test_one_that_differs_does_not_have_the_others_split_one_by_one(head, odd, place):
    made, parser = alike(400, head=head), OneByOne()
    made.insert(place, odd)
    parser.feed(b"".join(made))
    assert parser.single <= 1 or (place == 0 and odd.startswith((b"MSG", b"HMSG")))
    assert parser.found == stock([b"".join(made)])


@pytest.mark.parametrize("reply", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_messages_of_several_subscriptions_are_split_together(reply, head):
    made, parser = alike(300, reply=reply, head=head), OneByOne()
    made = [one.replace(b" 12 ", b" %d " % (at * at % 7), 1) for at, one in enumerate(made)]
    parser.feed(b"".join(made))
    assert parser.single == 0
    assert [sid for sid, _ in parser.calls] == [b"0", b"1", b"4", b"2"]
    assert sorted(parser.found, key=lambda one: one[0]) == sorted(stock([b"".join(made)]), key=lambda one: one[0])


ODD = st.sampled_from(
    [
        b"PING\r\n",
        b"INFO {}\r\n",
        message(b"orders.1", b"13", b"r", b"", b"another subscription"),
        message(b"orders.1", b"12", b"", b"", b"no reply"),
        message(b"orders.1", b"12", b"MSG", b"", b"5"),
        message(b"MSG", b"12", b"12", b"", b"MSG MSG 12 12 3"),
        message(b"orders.1", b"12", b"r", b"", b""),
        message(b"orders.1", b"12", b"r", b"", b"\r\n"),
        message(b"orders.1", b"12", b"r", b"", b"abc\r\nMSG orders.1 12 r 3\r\nxyz"),
        message(b"orders.1", b"12", b"r", b"NATS/1.0\r\n\r\n", b"headers"),
        message(b"orders.1", b"12", b"", b"NATS/1.0\r\n\r\n", b"no reply"),
        message(b"orders.1", b"12", b"r", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nA: b\r\n\r\n", b"\r\n"),
        message(b"orders.1", b"12", b"r", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nA: b", b"headers without an end"),
        message(b"orders.1", b"12", b"r", b"", b"x" * 2000),
        b"MSG orders.\t1 12 r 003\r\nabc\r\n",
        message(b"orders.1", b"12", b"r", b"no line break", b"payload"),
        message(b"orders.1", b"12", b"r", b"\r", b"\npayload"),
        message(b"orders.\x0b1", b"12", b"r", b"", b"another blank"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 300), ODD), max_size=4),
    st.lists(st.integers(0, 30_000), max_size=5),
)
def test_messages_among_others_that_are_not_alike_give_what_each_of_them_alone_gives(reply, head, odd, places):
    made = alike(300, reply=reply, head=head)
    for place, one in odd:
        made.insert(place, one)
    messages, lines, _ = ours(cut(b"".join(made), places))
    expected, expected_lines, _ = ours(made)
    assert sorted(messages, key=lambda found: found[0]) == sorted(expected, key=lambda found: found[0])
    assert lines == expected_lines


FRAGMENTS = [b"a", b"\r", b"\n", b"\r\n", b" ", b"5", b"\x0b", b"\t", b"1", b",", b"MSG a 1 3\r\nabc\r\n"]
BLOCK = st.one_of(
    st.integers(0, 3).map(lambda lines: b"NATS/1.0\r\n" + b"K: 1\r\n" * lines + b"\r\n"),
    st.lists(st.sampled_from(FRAGMENTS), max_size=5).map(b"".join),
)


@st.composite
def strange(draw):
    """A message whose subject, sizes, headers and payload may be strange, mostly one that is right."""
    subject = draw(st.sampled_from([b"a", b"b", b"a.b", b"MSG", b"1", b"a\x0bb", b"a\x0c7", b"a b"]))
    head = draw(st.one_of(st.just(b""), BLOCK))
    data = draw(
        st.one_of(st.sampled_from([b"", b"hello", b"12345"]), st.lists(st.sampled_from(FRAGMENTS)).map(b"".join))
    )
    made = message(
        subject, draw(st.sampled_from([b"1", b"1", b"2"])), draw(st.sampled_from([b"r", b"r", b""])), head, data
    )
    return made if draw(st.integers(0, 9)) else made.replace(b"5", b"4", 1)


@settings(max_examples=500, deadline=None)
@given(st.lists(strange(), max_size=6), st.integers(1, 4), st.lists(st.integers(0, 400), max_size=2))
def test_any_bytes_give_the_same_whether_messages_are_split_together_or_one_by_one(made, times, places):
    chunks = cut(b"".join(made * times), places)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (session, alike_messages):
            patch.setattr(module, "LEAST_ALIKE", 0)
        for together in (True, False):
            if not together:
                patch.setattr(Runs, "take", lambda self, buffer: 0)
            seen = []
            parser = Parser(
                lambda sid, batch, seen=seen: seen.extend((sid, *raw) for raw in raw_of(batch)),
                lambda line, seen=seen: seen.append((b"", line)),
            )
            try:
                for chunk in chunks:
                    parser.feed(chunk)
            except ProtocolError as error:
                seen.append((b"", str(error)))
            found.append(sorted(seen, key=lambda one: one[0]))  # order holds within a subscription
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [b"+5", b"-5", b"5_0", b"x", b"99999999999999999999", b""])
def test_a_malformed_line_among_messages_that_are_alike_is_named(size):
    made = [*alike(300), b"MSG a 12 r %b\r\nhello\r\n" % size, *alike(20)]
    if size in (b"+5", b"5_0"):  # Python reads them as numbers
        assert ours(made)[:2] == ours([b"".join(made)])[:2]
        return
    with pytest.raises(ProtocolError, match=r"malformed|is announced"):
        ours([b"".join(made)])


def test_messages_that_are_not_alike_are_not_tried_at_each_read(monkeypatch):
    tried, take = [], Runs.take

    def noting(self, buffer):
        tried.append(not self._skipped)
        return take(self, buffer)

    monkeypatch.setattr(Runs, "take", noting)
    parser = Parser(lambda sid, batch: None, lambda line: None)
    mixed = b"".join(10 * [b"PING\r\n", *alike(20)])
    for _ in range(1000):
        parser.feed(mixed)
    assert sum(tried) < 40
    for _ in range(100):
        parser.feed(b"".join(alike(200)))
    assert sum(tried[-30:]) == 30


def test_messages_of_one_read_come_in_one_call_for_each_subscription():
    calls = []
    parser = Parser(lambda sid, batch: calls.append((sid, len(batch))), lambda line: None)
    parser.feed(b"MSG a 1 0\r\n\r\nMSG b 2 0\r\n\r\nMSG a 1 0\r\n\r\n")
    assert calls == [(b"1", 2), (b"2", 1)]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 x",
        b"MSG a 5",
        b"MSG",
        b"MSG a 1 r s 5",
        b"MSG a 1 -14",  # would be read again and again
        b"MSG a 1 -1",
        b"HMSG a 1 5",
        b"HMSG a 1 x 5",
        b"HMSG a 1 9 5",  # headers longer than the whole
        b"HMSG a 1 -9 5",
        b"HMSG a 1 r s 5 5",
    ],
)
def test_a_malformed_message_line_raises_and_names_the_line(line):
    with pytest.raises(ProtocolError, match="malformed") as caught:
        ours([line + b"\r\n" + b"x" * 40])
    assert line.decode() in str(caught.value)


@pytest.mark.parametrize("read", [1, 7, 1000])
def test_a_long_line_over_many_reads_is_searched_once(read):
    lines = []
    parser = Counting(lambda sid, batch: None, lines.append)
    data = b"INFO " + b"x\n\r" * 20_000 + b"\r\n"
    for start in range(0, len(data), read):
        parser.feed(data[start : start + read])
    assert lines == [data[:-2]]
    assert parser.looked_at <= 2 * len(data)


@pytest.mark.parametrize("read", [1000, MAX_LINE_BYTES + 1])
@pytest.mark.parametrize("begin", [b"", b"INFO ", b"MSG a 1 0\r\n\r\nMSG "])
def test_a_line_without_an_end_is_an_error_that_shows_its_beginning(read, begin):
    messages, fed = [], []
    parser = Parser(lambda sid, batch: messages.extend(batch.raw), lambda line: None)
    data = begin + b"x" * 2 * MAX_LINE_BYTES

    def feed():
        for start in range(0, len(data), read):
            fed.append(start + read)
            parser.feed(data[start : start + read])

    with pytest.raises(ProtocolError, match=f"a line of over {MAX_LINE_BYTES} bytes without an end") as caught:
        feed()
    assert fed[-1] <= MAX_LINE_BYTES + len(begin) + read
    assert len(str(caught.value)) < 400
    assert len(messages) == begin.count(b"MSG a")


@pytest.mark.parametrize("line", [b"MSG a 1 %d", b"MSG a 1 r %d", b"HMSG a 1 12 %d"])
def test_a_message_that_no_server_sends_is_refused_as_it_is_announced(line):
    with pytest.raises(ProtocolError, match=f"a message of over {MAX_MESSAGE_BYTES} bytes is announced: b'H?MSG a"):
        ours([line % (MAX_MESSAGE_BYTES + 1) + b"\r\n"])
    assert ours([line % MAX_MESSAGE_BYTES + b"\r\n"]) == ([], [], [])  # it is waited for

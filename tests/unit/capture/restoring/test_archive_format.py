"""NATSARC1: what is written is the format, byte for byte, and what is read is what was written."""

import io

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import FormatError
from capture.formats.envelope import to_table
from capture.ingest.record import Records
from capture.restoring.archive import (
    COLUMNS,
    KEEP_ALIVE,
    ArchiveReader,
    ArchiveWriter,
    as_columns,
    encode,
    unframe,
    varint,
)

NOW = 1_795_230_000_123_456_789
HEADERS = st.none() | st.binary(min_size=1, max_size=40)
MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 2**62),
        st.integers(-(2**61), 2**61),
        st.binary(min_size=1, max_size=300),
        HEADERS,
        st.binary(max_size=400),
    ),
    unique_by=lambda one: one[0],
    max_size=60,
).map(sorted)


def table(messages):
    columns = list(zip(*messages, strict=True)) if messages else [[]] * 5
    arrays = [pa.array(list(column), kind.type) for column, kind in zip(columns, COLUMNS, strict=True)]
    return pa.table(arrays, schema=COLUMNS)


def written(messages, state=None, consumers=(), cuts=1):
    writer = ArchiveWriter(now_ns=NOW)
    pieces = [writer.begin(state or {"messages": len(messages)}, list(consumers))]
    rows = table(messages)
    for start in range(0, len(messages), max(1, len(messages) // cuts)):
        pieces += [KEEP_ALIVE, writer.add(rows.slice(start, max(1, len(messages) // cuts)))]
    return b"".join([*pieces, writer.end()])


def read(data, cut=1 << 16):
    inside = b"".join(unframe(io.BytesIO(data)))
    reader = ArchiveReader(inside[start : start + cut] for start in range(0, len(inside), cut))
    found = [
        message
        for records in reader.messages(most=7)
        for message in zip(
            records.sequences,
            records.times_ns,
            records.subjects,
            (block or None for block in records.header_blocks),
            records.payloads,
            strict=True,
        )
    ]
    return reader, found


def by_hand(name, sequence=0, time_ns=0, headers=b"", payload=b""):
    numbers = len(name), (time_ns << 1) ^ (time_ns >> 63), sequence, len(headers), len(payload)
    return b"".join(map(varint, numbers)) + name + headers + payload


@given(MESSAGES, st.integers(1, 5), st.integers(1, 50))
def test_what_was_written_is_read_however_it_is_cut(messages, cuts, cut):
    reader, found = read(written(messages, cuts=cuts), cut)
    assert found == messages
    assert reader.state == {"messages": len(messages), "consumer_count": 0}


@given(MESSAGES)
def test_columns_become_the_bytes_that_the_format_asks_for(messages):
    wanted = b"".join(
        by_hand(subject, *numbers[:2], headers or b"", payload) for *numbers, subject, headers, payload in messages
    )
    assert (encode(table(messages)) if messages else b"") == wanted


def test_the_whole_archive_byte_for_byte():
    consumer = {"config": {"name": "c"}, "state": {"ack_floor": {"stream_seq": 1}}}
    data = written([(5, NOW, b"a.b", b"NATS/1.0\r\n\r\n", b"x")], {"first_seq": 1}, [consumer])
    assert bytes(cramjam.snappy.decompress(data.replace(KEEP_ALIVE, b""))) == b"".join(
        [
            b"NATSARC1",
            by_hand(b"state.json", 0, NOW, b"", b'{"first_seq":1,"consumer_count":1}'),
            by_hand(b"consumers/c", 0, NOW, b"", b'{"config":{"name":"c"},"state":{"ack_floor":{"stream_seq":1}}}'),
            by_hand(b"a.b", 5, NOW, b"NATS/1.0\r\n\r\n", b"x"),
            bytes(5),
        ]
    )
    reader, _ = read(data)
    assert reader.consumers == [consumer]


def test_subjects_that_are_no_text_keep_their_bytes():
    records = Records("S", [1, 2], [1, 2], [b"a.\xff", b"b"], [b"", b""], [b"", b"\xfe"], [1, 1], [b""] * 2, [None] * 2)
    rows = as_columns(to_table(records))
    assert rows.schema == COLUMNS
    assert rows["subject"].to_pylist() == [b"a.\xff", b"b"]


@given(st.data())
def test_an_archive_that_is_cut_off_anywhere_is_refused(data):
    whole = written([(one, NOW, b"a.b", None, b"payload") for one in range(1, 30)])
    with pytest.raises(FormatError, match=r"cut off|framing|damaged"):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_changed_byte_is_found_by_the_checksums():
    whole = bytearray(written([(one, NOW, b"a.b", None, b"payload") for one in range(1, 30)]))
    whole[-20] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        read(bytes(whole))


START = b"NATSARC1" + by_hand(b"state.json", payload=b"{}")


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (b"NATSARC2", "does not begin with NATSARC1"),
        (b"NATSARC1" + by_hand(b"other", payload=b"{}"), "stands where state.json belongs"),
        (b"NATSARC1" + by_hand(b"state.json", payload=b"{"), "is damaged"),
        (b"NATSARC1" + by_hand(b"state.json", payload=b'{"consumer_count":-1}'), "-1 consumers"),
        (b"NATSARC1" + by_hand(b"state.json", payload=b'{"consumer_count":1}') + bytes(5), "consumers/ belongs"),
        (START + by_hand(b"a", 2) + by_hand(b"a", 2) + bytes(5), "sequence 2 follows 2"),
        (START + by_hand(b"a", 2), "cut off"),
        (START + bytes(5) + b"more", "its end is not valid"),
        (START + by_hand(b"", 1), "its end is not valid"),
        (START + b"\xff" * 12, "64 bits"),
        (START + varint(1) + varint(0) + varint(1) + varint(0) + varint(1 << 40), "damaged"),
    ],
)
def test_what_is_no_archive_is_refused_with_the_reason(inside, reason):
    with pytest.raises(FormatError, match=reason):
        list(ArchiveReader([inside]).messages())


def test_a_chunk_that_says_nothing_and_is_cut_off_is_noticed_too():
    for cut in (b"\xfe\x05\x00\x00ab", b"\xfe\x05"):
        with pytest.raises(FormatError, match="cut off"):
            list(unframe(io.BytesIO(b"\xff\x06\x00\x00sNaPpY" + cut)))


def test_what_is_in_another_framing_is_refused():
    for data in (b"", b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpY\x05\x01\x00\x00x"):
        with pytest.raises(FormatError, match=r"not in Snappy's framing|unknown kind 5"):
            list(unframe(io.BytesIO(data)))

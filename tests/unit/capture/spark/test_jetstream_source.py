"""The data source without Spark and without a server: options, plans, what an answer holds, what a row becomes."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from capture.errors import ConfigError, DataLossError, SparkError
from capture.formats.envelope import SCHEMA, to_records, to_table
from capture.ingest.record import Records
from capture.reading.direct_answers import (
    Answer,
    Broken,
    Cut,
    Mirrored,
    Unbatched,
    is_message,
    list_sequences,
    take_until,
)
from capture.reading.stream_range import StreamFacts
from capture.spark.jetstream import DefaultSource
from capture.spark.jetstream.readers import ENVELOPE, list_columns
from capture.spark.jetstream.rows import Outgoing, check_columns, make_outgoing
from capture.spark.jetstream.source_options import ReadOptions, WriteOptions, option_names
from capture.spark.jetstream.splits import Offset, Tally, ranges, resume
from natty import Batch

ROOT = Path(__file__).parents[4]
KINDS = {"STRING": StringType(), "BINARY": BinaryType(), "BIGINT": LongType(), "INT": IntegerType()}
STREAM = StreamFacts("ORDERS", "2026-01-01T00:00:00Z", 1, 1000, True)


def columns(ddl):
    """The schema of these columns; Spark's own parser of such text runs in a JVM."""
    schema = StructType()
    for column in ddl.split(", "):
        name, kind = column.split()
        schema.add(name, KINDS[kind])
    return schema


# --- options ---------------------------------------------------------------------------------------------------------


def test_options_are_read_whatever_their_case():
    options = ReadOptions.of(
        {
            "STREAM": "ORDERS",
            "servers": "tls://a:4222,tls://b:4222",
            "tlsca": "/ca.pem",
            "startsequence": "7",
            "failOnDataLoss": "False",
            "maxMessagesPerTrigger": "500",
            "timeout": "2.5",
        }
    )
    assert (options.stream, options.start_sequence, options.fail_on_data_loss) == ("ORDERS", 7, False)
    assert options.max_messages_per_trigger == 500
    assert options.nats == {"servers": "tls://a:4222,tls://b:4222", "tls_ca": "/ca.pem", "timeout": 2.5}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no stream is named"),
        ({"stream": "A", "startSequense": "1"}, "no option startSequense; did you mean startSequence"),
        ({"stream": "A", "tlsKay": "/k"}, "did you mean tlsKey"),
        ({"stream": "A", "path": "x"}, "there is no option path"),
        ({"stream": "A B"}, "option stream 'A B'"),
        ({"stream": "A", "startSequence": "0"}, "option startSequence '0': it must be a whole number of 1 or more"),
        ({"stream": "A", "startSequence": "one"}, "of 1 or more"),
        ({"stream": "A", "startTime": "yesterday"}, "2026-01-31T12:00:00Z"),
        ({"stream": "A", "startTime": "2026-01-01", "startSequence": "3"}, "contradict each other"),
        ({"stream": "A", "startSequence": "9", "endSequence": "3"}, "endSequence 3 is before startSequence 9"),
        ({"stream": "A", "failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"stream": "A", "readBy": "magic"}, "it is auto or direct or consumer"),
        ({"stream": "A", "timeout": "-1"}, "a number of seconds"),
    ],
)
def test_a_wrong_option_of_reading_is_named(given, said):
    with pytest.raises(ConfigError) as caught:
        ReadOptions.of(given)
    assert said in str(caught.value)


def test_a_wrong_option_of_writing_is_named():
    with pytest.raises(ConfigError, match="no option startSequence"):
        WriteOptions.of({"stream": "A", "startSequence": "1"})
    with pytest.raises(ConfigError, match="remove one of them"):
        WriteOptions.of({"stream": "A", "writeId": "x", "messageIds": "none"})
    assert WriteOptions.of({"stream": "A", "checkpointLocation": "/c"}).stream == "A"


@pytest.mark.parametrize("option", ["password", "Token", "user"])
def test_a_secret_is_no_option_and_is_not_repeated(option):
    with pytest.raises(ConfigError, match=f"{option} is not an option: Spark would show it") as caught:
        ReadOptions.of({"stream": "A", option: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_login_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="contains a login") as caught:
        ReadOptions.of({"stream": "A", "servers": "nats://me:hunter2@a:4222"})
    assert "hunter2" not in str(caught.value)


def test_a_time_without_a_zone_is_utc():
    assert ReadOptions.of({"stream": "A", "startTime": "2026-01-31T12:00"}).start_time == "2026-01-31T12:00:00Z"
    given = {"stream": "A", "startTime": "2026-01-31T12:00:00.123456789+02:00"}
    assert ReadOptions.of(given).start_time == "2026-01-31T10:00:00.123456789Z"


def test_every_option_is_in_the_documentation():
    text = (ROOT / "docs" / "spark.md").read_text()
    assert [name for name in option_names() if f"`{name}`" not in text] == []


# --- plans -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**12), st.integers(0, 10**9), st.integers(0, 50))
def test_ranges_cover_every_sequence_once(first, length, wanted):
    found = ranges(STREAM, first, first + length - 1, wanted)
    assert sum(one.last - one.first + 1 for one in found) == length
    assert all(one.first <= one.last for one in found)
    assert [one.last + 1 for one in found[:-1]] == [one.first for one in found[1:]]
    if found:
        assert (found[0].first, found[-1].last) == (first, first + length - 1)
        assert len(found) == min(length, wanted or len(found))


def offset(next_, created=STREAM.created, stream="ORDERS"):
    return Offset(stream, created, next_)


def test_a_query_goes_on_where_it_was():
    assert resume(STREAM, offset(700), fail=True) == (700, "")
    assert resume(STREAM, offset(1001), fail=True) == (1001, "")
    assert resume(STREAM, offset(1), fail=True) == (1, "")


@pytest.mark.parametrize(
    ("stream", "at", "seen", "first", "said"),
    [
        (StreamFacts("ORDERS", STREAM.created, 150, 1000, True), offset(100), 0, 150, r"sequences 100–149 \(50\) were"),
        (StreamFacts("ORDERS", STREAM.created, 101, 1000, True), offset(100), 0, 101, r"sequence 100 was removed"),
        (StreamFacts("ORDERS", "later", 1, 5, True), offset(100), 0, 1, "deleted and created again at later"),
        (StreamFacts("ORDERS", STREAM.created, 1, 50, True), offset(100), 0, 51, "ends at sequence 50.* earlier state"),
        (STREAM, offset(900), 1200, 900, "ends at sequence 1000, and it held 1200 before"),
    ],
    ids=["front", "front by one", "made anew", "rolled back", "rolled back in a micro-batch"],
)
def test_what_is_lost_is_named_and_fails_the_query_unless_it_may(stream, at, seen, first, said):
    with pytest.raises(DataLossError, match=f"{said}.*failOnDataLoss"):
        resume(stream, at, seen=seen, fail=True)
    went_on, lost = resume(stream, at, seen=seen, fail=False)
    assert went_on == first
    assert lost


def test_a_checkpoint_of_another_stream_is_always_refused():
    with pytest.raises(DataLossError, match="the checkpoint is of stream OTHER"):
        resume(STREAM, offset(1, stream="OTHER"), fail=False)


def test_an_empty_stream_begins_after_its_last_message():
    info = {"config": {"name": "A"}, "created": "t", "state": {"messages": 0, "first_seq": 0, "last_seq": 0}}
    assert StreamFacts.of(info) == StreamFacts("A", "t", 1, 0, False)
    info["state"] = {"messages": 0, "first_seq": 11, "last_seq": 10}
    assert StreamFacts.of(info).first == 11


def test_a_tally_tells_what_was_removed_one_by_one_from_what_the_front_took():
    tally = Tally(1)
    assert tally.take([5, 6, 9]) == [(1, 4), (7, 8)]
    assert (tally.read, tally.deleted, tally.lost) == (3, 6, 0)
    assert tally.lose((1, 4), front=1) is None
    assert tally.lose((1, 4), front=3) == (1, 2)
    assert tally.lose((7, 8), front=20) == (7, 8)
    assert (tally.read, tally.deleted, tally.lost) == (3, 2, 4)
    assert tally.end(12) == [(10, 12)]
    assert tally.read + tally.deleted + tally.lost == 12
    assert tally.end(12) == []


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(0, 5))
def test_gaps_are_what_is_missing(present, before):
    sequences = sorted(number + before for number in present)
    tally = Tally(before + 1)
    missing = [number for first, last in tally.take(sequences) for number in range(first, last + 1)]
    assert missing == sorted(set(range(before + 1, sequences[-1])) - set(sequences))
    assert (tally.read, tally.deleted, tally.position) == (len(sequences), len(missing), sequences[-1] + 1)


# --- answers ---------------------------------------------------------------------------------------------------------


def answer(*messages, stream="ORDERS"):
    """What the server sends: (sequence, own headers, payload) of each, and what it appends to the headers."""
    raw, before = [], 0
    for sequence, own, payload in messages:
        added = (
            f"Nats-Stream: {stream}\r\nNats-Subject: orders.{sequence}\r\nNats-Sequence: {sequence}\r\n"
            f"Nats-Time-Stamp: 2026-11-21T21:02:06.{sequence}Z\r\nNats-Num-Pending: 9\r\n"
            f"Nats-Last-Sequence: {before}\r\n\r\n"
        )
        raw.append((b"_INBOX.1", b"", (own[:-2] if len(own) > 2 else b"NATS/1.0\r\n") + added.encode(), payload))
        before = sequence
    return raw


def whole(raw, read=2):
    """The answer of which each read of the socket brings so many messages."""
    found = Answer("ORDERS")
    for at in range(0, len(raw), read):
        found.add(Batch(raw[at : at + read]))
    return found


def test_an_answer_becomes_columns_and_own_headers_come_out_as_they_went_in():
    own = b"NATS/1.0\r\nA: 1\r\nNats-Stream: mine\r\nNats-Sequence: 5\r\nA: 2\r\n\r\n"
    rows = whole(answer((3, b"", b"x"), (7, own, b""), (12, b"", b"\r\n"))).rows()
    found = to_records(rows)
    assert found.sequences == [3, 7, 12]
    assert found.subjects == [b"orders.3", b"orders.7", b"orders.12"]
    assert found.header_blocks == [b"", own, b""]
    assert found.payloads == [b"x", b"", b"\r\n"]
    assert [time % 10**9 for time in found.times_ns] == [300_000_000, 700_000_000, 120_000_000]
    assert found.times_ns[0] // 10**9 == 1795294926
    assert list_sequences(take_until(rows, 7)) == [3, 7]
    assert list_sequences(take_until(rows, 12)) == [3, 7, 12]
    assert take_until(rows, 7).column("payload").to_pylist() == [b"x", b""]
    assert len(take_until(rows, 2)) == 0


OWN = ["A: 1", "A: 2", "Nats-Msg-Id: m", "B:", "Nats-Stream: ORDERS", "Z: \xff", "no colon"]
"""Lines of headers that a message may have itself."""
MESSAGES = st.lists(st.tuples(st.lists(st.sampled_from(OWN)), st.binary(max_size=9), st.binary(max_size=9)), min_size=1)


@given(MESSAGES.filter(lambda messages: len(messages) < 10), st.sets(st.sampled_from(SCHEMA.names)))
def test_an_answer_has_the_rows_that_its_messages_have_one_by_one(messages, columns):
    blocks = ["\r\n".join(["NATS/1.0", *own, "", ""]).encode("latin-1") if own else b"" for own, _, _ in messages]
    subjects = [subject.translate(None, b"\r\n ") or b"s" for _, _, subject in messages]
    payloads = [payload for _, payload, _ in messages]
    raw = answer(*zip(range(1, len(messages) + 1), blocks, payloads, strict=True))
    for at, (subject, reply, head, payload) in enumerate(raw):
        raw[at] = subject, reply, head.replace(b"orders.%d\r\n" % (at + 1), subjects[at] + b"\r\n"), payload
    records = Records(
        stream="ORDERS",
        sequences=list(range(1, len(raw) + 1)),
        times_ns=[1795294926 * 10**9 + at * 10**8 for at in range(1, len(raw) + 1)],
        subjects=subjects,
        header_blocks=blocks,
        payloads=payloads,
        deliveries=[1] * len(raw),
    )
    expected = to_table(records)
    assert whole(raw).rows().to_pylist() == expected.to_pylist()
    batch = whole(raw).batch()
    again = Batch(batch.raw)  # its numbers are read from the ack subjects
    assert (batch.sequences, batch.times_ns, batch.deliveries) == (again.sequences, again.times_ns, again.deliveries)
    assert to_table(Records.of(batch)).to_pylist() == expected.to_pylist()
    names = [name for name in SCHEMA.names if name == "sequence" or name in columns]
    some = whole(raw).rows(columns)
    assert some.schema.names == names
    assert some.to_pylist() == expected.select(names).to_pylist()


@pytest.mark.parametrize("read", [1, 2, 3])
def test_an_answer_with_a_hole_is_noticed(read):
    raw = answer((3, b"", b""), (7, b"", b""), (12, b"", b""))
    for broken in (raw[1:], raw[:1] + raw[2:]):
        with pytest.raises(Broken):
            whole(broken, read)


def test_an_answer_with_anything_else_is_noticed():
    raw = answer((3, b"", b""), (7, b"", b""), (12, b"", b""))
    status, cut = (b"", b"", b"NATS/1.0 503\r\n\r\n", b""), (*raw[1][:2], raw[1][2][:-30], b"")
    renamed = (*raw[1][:2], raw[1][2].replace(b"Nats-Sequence", b"Nats-Position"), b"")
    for other in (status, cut, renamed):
        with pytest.raises(Broken):
            whole([raw[0], other, raw[2]])


def test_the_answer_of_a_server_that_sends_one_message_at_a_time_is_noticed():
    head, _, _ = answer((3, b"", b""))[0][2].partition(b"Nats-Num-Pending")
    with pytest.raises(Unbatched):
        whole([(b"_INBOX.1", b"", head + b"\r\n", b"")])


def test_what_the_server_says_counts_and_not_what_a_message_without_an_end_of_its_headers_says():
    forged = answer((7, b"", b""))[0][2].removeprefix(b"NATS/1.0\r\n").replace(b"orders.7", b"orders.paid")
    cut = {3: b"NATS/1.0\r\nA: bcd", 7: b"NATS/1.0\r\n" + forged[:-4] + b"xy"}
    blocks = cut | {12: b""}
    raw = answer(*((sequence, block, b"") for sequence, block in blocks.items()))
    assert all(is_message(block) for _, _, block, _ in raw)
    for read in (1, len(raw)):
        with pytest.raises(Cut) as error:
            whole(raw, read).rows()
        assert error.value.sequences == [3, 7]
        with pytest.raises(Cut) as error:
            whole(raw, read).batch(known={3: blocks[3]})
        assert error.value.sequences == [7]
        delivered = Records.of(whole(raw, read).batch(known=cut))
        assert delivered.header_blocks == list(blocks.values())
        assert delivered.sequences == list(blocks)
        assert (delivered.stream, delivered.deliveries) == ("ORDERS", [1] * 3)
        found = to_records(whole(raw, read).rows(known=cut))
        assert found.header_blocks == list(blocks.values())
        assert found.subjects == [b"orders.3", b"orders.7", b"orders.12"]
        subjects = whole(raw, read).rows(["subject"]).column("subject").to_pylist()
        assert subjects == [f"orders.{sequence}" for sequence in blocks]


def test_a_block_of_two_bytes_and_two_bytes_after_a_line_can_not_be_seen():
    raw = answer((3, b"xy", b""), (7, b"NATS/1.0\r\nA: 1\r\nxy", b""))
    assert whole(raw).batch().header_blocks == [b"", b"NATS/1.0\r\nA: 1\r\n\r\n"]


def test_messages_are_left_out():
    found = whole(answer((3, b"", b"x"), (7, b"NATS/1.0\r\nA: bcd", b"y"), (12, b"", b"z")))
    found.leave_out({7})
    assert (found.batch().sequences, found.batch().payloads) == ([3, 12], [b"x", b"z"])
    assert found.rows().column("subject").to_pylist() == ["orders.3", "orders.12"]
    found.leave_out({3, 12})
    assert (len(found.batch()), len(found.rows())) == (0, 0)


def test_a_newer_server_may_append_further_headers():
    raw = [
        (subject, reply, block[:-2] + b"Nats-Later: 1\r\n\r\n", payload)
        for subject, reply, block, payload in answer((3, b"", b"x"), (7, b"NATS/1.0\r\nA: 1\r\n\r\n", b""))
    ]
    found = to_records(whole(raw).rows())
    assert (found.sequences, found.header_blocks) == ([3, 7], [b"", b"NATS/1.0\r\nA: 1\r\n\r\n"])


def test_the_answer_of_a_mirror_is_noticed():
    with pytest.raises(Mirrored):
        whole(answer((3, b"", b""), stream="ORDERS-COPY"))


def test_a_status_is_no_message_and_a_message_that_looks_like_one_is():
    end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 5\r\n\r\n"
    assert not is_message(end)
    assert is_message(answer((1, b"NATS/1.0 503\r\n\r\n", b""))[0][2])


def test_messages_are_rows_of_the_envelope_as_spark_takes_them():
    assert to_arrow_schema(ENVELOPE).equals(SCHEMA)
    (row,) = whole(answer((3, b"NATS/1.0\r\nB: 1\r\n\r\n", b"p"))).rows().to_pylist()
    assert (row["stream"], row["deliveries"], row["headers"]) == ("ORDERS", 1, [("B", ["1"])])


def test_columns_may_be_left_out_and_wrong_ones_are_named():
    assert list_columns(columns("payload BINARY, sequence BIGINT")) == ["payload", "sequence"]
    with pytest.raises(ConfigError, match="no column paylod; did you mean payload"):
        list_columns(columns("paylod BINARY"))
    with pytest.raises(ConfigError, match="column payload is binary, not string"):
        list_columns(columns("payload STRING"))


# --- rows ------------------------------------------------------------------------------------------------------------

WRITE = WriteOptions(stream="ORDERS")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("subject STRING", "no column payload"),
        ("payload STRING", "no column subject"),
        ("subject STRING, paylod STRING", "no column paylod of a message; did you mean payload"),
        ("subject STRING, payload INT", "column payload is int, it must be string or binary"),
        ("subject INT, payload STRING", "column subject is int, it must be string"),
        (
            "subject STRING, payload STRING, headers STRING",
            "column headers is string, it must be map<",
        ),
    ],
)
def test_rows_that_are_no_messages_are_refused(schema, said):
    with pytest.raises(ConfigError) as caught:
        check_columns(columns(schema), WRITE)
    assert said in str(caught.value)


def test_what_was_read_can_be_written():
    check_columns(ENVELOPE, WRITE)
    check_columns(columns("payload STRING"), WriteOptions(stream="A", subject="a.b"))
    with pytest.raises(ConfigError, match="remove one of them"):
        check_columns(ENVELOPE, WriteOptions(stream="A", subject="a.b"))


def test_rows_become_messages_with_ids_of_their_place():
    batch = pa.RecordBatch.from_pydict(
        {
            "subject": ["a", "b", "c"],
            "payload": [b"1", None, b"3"],
            "headers": pa.array(
                [[("A", ["1", "2"]), ("Nats-Msg-Id", ["old"]), ("Nats-Expected-Stream", ["OLD"])], None, [("B", None)]],
                pa.map_(pa.string(), pa.list_(pa.string())),
            ),
            "message_id": [None, "mine", None],
            "sequence": [1, 2, 3],
        }
    )
    assert list(make_outgoing(batch, WRITE, "job-0-", 10)) == [
        Outgoing("a", b"1", {"A": ["1", "2"]}, "job-0-10"),
        Outgoing("b", b"", None, "mine"),
        Outgoing("c", b"3", {"B": [""]}, "job-0-12"),
    ]
    bare = WriteOptions(stream="ORDERS", message_ids="none")
    assert [one.message_id for one in make_outgoing(batch, bare, "job-0-", 10)] == ["", "mine", ""]


def test_one_subject_may_be_given_to_all_and_text_is_a_payload():
    batch = pa.RecordBatch.from_pydict(
        {"payload": ["ä"], "headers": pa.array([[("A", "1")]], pa.map_(pa.string(), pa.string()))}
    )
    [only] = make_outgoing(batch, WriteOptions(stream="A", subject="a.b"), "x", 0)
    assert only == Outgoing("a.b", "ä".encode(), {"A": ["1"]}, "x0")


def test_a_row_without_a_subject_is_an_error():
    batch = pa.RecordBatch.from_pydict({"subject": ["a", None], "payload": [b"", b""]})
    with pytest.raises(SparkError, match="row 5 of a partition has no subject"):
        list(make_outgoing(batch, WRITE, "x", 4))


# --- how Spark finds it ----------------------------------------------------------------------------------------------


def test_spark_finds_the_source_and_importing_its_module_loads_nothing():
    code = """
import sys, pyspark_jetstream
assert not {"pyspark", "pyarrow", "capture", "natty"} & set(sys.modules), "not light"
from pkgutil import iter_modules
assert any(one.name == "pyspark_jetstream" for one in iter_modules())
assert hasattr(pyspark_jetstream, "DefaultSource") and pyspark_jetstream.DefaultSource.name() == "jetstream"
assert "pyarrow" not in sys.modules, "looking a source up must not cost what using it does"
sys.modules["capture.spark.jetstream"] = None
assert not hasattr(pyspark_jetstream, "DefaultSource"), "where something is missing, there is no such source"
assert not hasattr(pyspark_jetstream, "Nonsense")
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "pyspark_jetstream.py" in (ROOT / "pyproject.toml").read_text()


def test_a_stream_is_not_overwritten():
    with pytest.raises(ConfigError, match="can't be overwritten"):
        DefaultSource({"stream": "A"}).writer(ENVELOPE, True)

"""CSV: a header, a row or several a message, and no payload that costs a block."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from sealed import HEADERS, block, csv_rows

from capture.decoders import Decoding, decoder, per_message
from capture.formats import reader, writer
from capture.formats.csv import ENVELOPE, FLATTEN, MOST_COLUMNS, CsvWriter
from capture.ingest.record import Records
from natty.wire.message import Batch, Message


def test_csv_has_a_header_and_a_column_a_field() -> None:
    kept = block((b"a", HEADERS, b'{"origin":"E,W\\r\\nR","at":{"gate":7,"open":true},"legs":[1,2],"none":null}'))
    (row,) = csv_rows(writer("csv", decode=decoder("json")).write(kept))
    assert {name: row[name] for name in ("sequence", "row", "subject", "message_id", "payload")} == {
        "sequence": "100",
        "row": "0",
        "subject": "a",
        "message_id": "id-1",
        "payload": "",
    }
    assert (row["origin"], row["at.gate"], row["at.open"], row["legs"], row["none"]) == (
        "E,W\r\nR", "7", "true", "[1,2]", "",
    )  # fmt: skip
    assert json.loads(row["headers"])["Colour"] == ["red", "blue"]


def test_an_empty_header_block_and_none_are_both_an_empty_cell() -> None:
    kept = block((b"a", b"NATS/1.0\r\n\r\n", b"{}"), (b"a", b"", b"{}"))
    one, other = csv_rows(writer("csv").write(kept))
    assert (one["headers"], one["message_id"]) == (other["headers"], other["message_id"]) == ("", "")


def test_a_list_is_a_row_an_element_and_its_message_counts_once() -> None:
    kept = block((b"a", b"", b'[{"n":1},{"n":2,"subject":"s"}]'), (b"a", b"", b"[]"), (b"a", b"", b"7"))
    wanted = writer("csv", decode=decoder("json"))
    data = wanted.write(kept)
    assert [
        (r["sequence"], r["row"], r["n"], r["value_subject"], r["value"], r["payload"]) for r in csv_rows(data)
    ] == [
        ("100", "0", "1", "", "", ""),
        ("100", "1", "2", "s", "", ""),
        ("101", "0", "", "", "", "[]"),
        ("102", "0", "", "", "7", ""),
    ]
    back = reader(wanted.format)
    assert [sequences for sequences, _ in back.positions(BytesIO(data), kept)] == [[100, 101, 102]]
    assert back.read(data, kept)["payload"].to_pylist() == [None, b"[]", None]
    assert not back.restorable


def test_payloads_with_names_of_their_own_do_not_make_a_column_each() -> None:
    payloads = [b'{"same":1,"n%d":%d}' % (n, n) for n in range(3 * MOST_COLUMNS)]
    data = writer("csv", decode=decoder("json")).write(block(*[(b"a", b"", payload) for payload in payloads]))
    rows = csv_rows(data)
    assert len(rows[0]) == len(ENVELOPE) + MOST_COLUMNS + 1
    assert (rows[5]["same"], rows[5]["n5"], rows[5]["_more"]) == ("1", "5", "")
    assert json.loads(rows[-1]["_more"]) == {f"n{3 * MOST_COLUMNS - 1}": 3 * MOST_COLUMNS - 1}


def test_no_field_hides_another_one() -> None:
    kept = block((b"a", b"", b'{"subject":1,"value_subject":2}'))
    (row,) = csv_rows(writer("csv", decode=decoder("json")).write(kept))
    assert (row["subject"], row["value_subject"], row["value_value_subject"]) == ("a", "1", "2")


def legs(value: Any) -> list[dict[str, Any]]:
    return [{"leg": leg, "of": value["flight"]} for leg in value["legs"]]


def test_a_function_of_your_own_makes_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.testing.legs", legs, raising=False)
    wanted = writer("csv", decode=decoder("json"), flatten="capture.testing:legs")
    rows = csv_rows(wanted.write(block((b"a", b"", b'{"flight":5,"legs":["x","y"]}'))))
    assert [(row["leg"], row["of"]) for row in rows] == [("x", "5"), ("y", "5")]


def test_the_decoder_s_own_function_makes_the_rows() -> None:
    decoding: Decoding[Any] = Decoding(decoder("json"), flatten=legs)
    rows = csv_rows(writer("csv", decode=decoding).write(block((b"a", b"", b'{"flight":5,"legs":["x"]}'))))
    assert [(row["leg"], row["of"]) for row in rows] == [("x", "5")]


def test_a_value_that_can_not_be_flattened_keeps_its_payload_and_is_counted() -> None:
    wanted = CsvWriter(Decoding(decoder("json"), flatten=legs))
    kept = block((b"a", b"", b'{"legs":["x"]}'), (b"a", b"", b'{"flight":5,"legs":["x"]}'))
    bad, good = csv_rows(wanted.write(kept))
    assert (bad["error"], bad["payload"], bad["leg"]) == ("flatten: KeyError: 'flight'", '{"legs":["x"]}', "")
    assert (good["error"], good["leg"]) == ("", "x")
    assert wanted.unfit == {FLATTEN: 1}


def test_an_undecodable_message_is_in_the_csv_with_its_payload_and_the_reason() -> None:
    kept = block((b"a", b"", b"\xff" * 200_000), errors={0: "no JSON"})
    wanted = writer("csv", decode=decoder("json"))
    data = wanted.write(kept)
    (row,) = reader("csv").read(data, kept).to_pylist()
    assert (row["payload"], row["error"]) == (b"\xff" * 200_000, "no JSON")


def test_a_decoder_of_batches_that_fails_the_second_time_costs_no_block() -> None:
    def decode(batch: Batch) -> Records[int]:
        raise RuntimeError("not now")

    (row,) = csv_rows(writer("csv", decode=decode).write(block((b"a", b"", b"x"))))
    assert row["payload"] == "x"


def test_a_decoder_that_fails_the_second_time_costs_no_block() -> None:
    calls = []

    def once(message: Message) -> int:
        calls.append(message)
        raise ValueError("not now")

    (row,) = csv_rows(writer("csv", decode=per_message(once)).write(block((b"a", b"", b"x"))))
    assert (len(calls), row["payload"]) == (1, "x")

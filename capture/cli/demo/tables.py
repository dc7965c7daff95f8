"""The demo's pipelines: two tables that its nodes derive from the flights, as pyiceberg reads them and by the CSV."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple

from capture.cli.demo import flights
from capture.cli.demo.flights import Answer

MOST_DIFFERENCES = 5
"""Differences of a table that are shown."""

TIME = "time"
"""The column that the data set has as a number: 1039."""

PIPELINES_TOML = f'''
[[pipeline]]
name = "delays"
schedule = "every 2s"
schema = "{flights.COLUMNS}"
sql = """
SELECT carrier, make_date(year, month, day) AS day, count(*) AS departures, coalesce(sum(dep_delay), 0) AS delay
FROM {flights.STREAM} GROUP BY 1, 2
"""
mode = "upsert"
key = ["carrier", "day"]
buckets = 4

[[pipeline]]
name = "tails"   # the last departure of each aircraft by time: its last message may be an earlier one
schedule = "every 2s"
schema = "{flights.COLUMNS}"
sql = """
SELECT tailnum, max(struct(make_date(year, month, day) AS day, dep_time, origin, dest)) AS departure
FROM {flights.STREAM} WHERE tailnum IS NOT NULL AND dep_time IS NOT NULL GROUP BY tailnum
"""
mode = "upsert"
key = "tailnum"
buckets = 4
'''
"""The end of the demo's `capture.toml`."""


class Kept(NamedTuple):
    """A table that a pipeline keeps: how it is shown, its rows by `order`, the highest first."""

    name: str
    title: str
    columns: tuple[str, ...]
    order: int

    def show(self, rows: Answer) -> Answer:
        """Return the rows in the order in which they are shown, with times that people read."""
        ordered = sorted(rows, key=lambda row: (row[self.order :], row), reverse=True)
        return [tuple(map(_show, self.columns, row)) for row in ordered]

    def compare(self, found: Answer, wanted: Answer) -> list[str]:
        """Return the differences between the table and the CSV, a sentence for each row; none if they are equal."""
        more, fewer = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
        said = [f"table {self.name} has {row}, and the CSV does not" for row in sorted(more)]
        said += [f"table {self.name} does not have {row}, and the CSV has" for row in sorted(fewer)]
        left = len(said) - MOST_DIFFERENCES
        return said[:MOST_DIFFERENCES] + ([f"table {self.name} has {left:,} more differences"] if left > 0 else [])


def _show(column: str, value: int | str) -> int | str:
    return f"{value // 100}:{value % 100:02}" if column == TIME and isinstance(value, int) else value


TABLES = (
    Kept("delays", "Table delays, by carrier and day", ("carrier", "day", "departures", "sum of delays, min"), 3),
    Kept("tails", "Table tails, the last departures", ("tail number", "day", TIME, "from", "to"), 1),
)


async def read_table(location: str) -> Answer:
    """Return the rows of an Iceberg table as pyiceberg reads them; structs are flat, and dates are ISO 8601 texts."""
    return await asyncio.to_thread(_read, location)


def _read(location: str) -> Answer:
    from pyiceberg.table import StaticTable  # here: the demo first says what is not installed

    rows = StaticTable.from_metadata(location).scan().to_arrow().to_pylist()
    return [tuple(_flatten(row.values())) for row in rows]


def _flatten(values: Iterable[object]) -> Iterable[int | str]:
    for value in values:
        if isinstance(value, dict):
            yield from _flatten(value.values())
        else:
            yield value if isinstance(value, int) else str(value)


def compute_tables(limit: int | None = None) -> dict[str, Answer]:
    """Return the rows of `TABLES` by their names, computed from the CSV directly."""
    delays: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    tails: dict[str, tuple[str, int, str, str]] = {}
    for row in flights.rows(limit):
        day = date(int(row["year"]), int(row["month"]), int(row["day"])).isoformat()
        one = delays[row["carrier"], day]
        one[0] += 1
        if flights.is_known(row["dep_delay"]):
            one[1] += int(row["dep_delay"])
        if flights.is_known(row["tailnum"]) and flights.is_known(row["dep_time"]):
            departure = (day, int(row["dep_time"]), row["origin"], row["dest"])
            tails[row["tailnum"]] = max(tails.get(row["tailnum"], departure), departure)
    return {
        "delays": [(*key, *numbers) for key, numbers in delays.items()],
        "tails": [(tail, *departure) for tail, departure in tails.items()],
    }

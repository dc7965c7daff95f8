"""The tables of a chaos run of pipelines: queries, orders, what Python computes of them, what engines read."""

import hashlib
import json
import random
from collections import defaultdict
from pathlib import Path

import pyarrow.compute as pc
from pipeline_nodes import SCHEMA, STREAM, read_document
from pyiceberg.table import StaticTable

COUNTRIES = ("de", "dk", "se", "no")
REVENUE = {  # MERGE
    "sql": (
        "SELECT country, day, sum(total) AS revenue, count(*) AS orders, min(total) AS smallest,"
        f" max(total) AS largest, last(total) AS newest FROM {STREAM} WHERE total IS NOT NULL GROUP BY country, day"
    ),
    "mode": "upsert",
    "key": ["country", "day"],
    "buckets": 2,
}
PIPELINES = (
    {"name": "revenue", **REVENUE},
    {"name": "revenue_followed", "trigger": "stream", **REVENUE},
    {
        "name": "large",  # ROWS
        "sql": f"SELECT sequence, country, total FROM {STREAM} WHERE total >= 50",
        "mode": "append",
    },
    {
        "name": "distinct_totals",  # GROUPS
        "sql": (
            f"SELECT country, count(DISTINCT total) AS totals, count(*) AS orders FROM {STREAM}"
            " WHERE total IS NOT NULL GROUP BY country"
        ),
        "mode": "upsert",
        "key": ["country"],
        "buckets": 2,
    },
    {"name": "customers", "kind": "latest", "inputs": [STREAM], "key": "subject:3", "buckets": 2},
    {
        "name": "large_by_country",  # of another pipeline's table
        "sql": "SELECT country, count(*) AS orders, sum(total) AS total FROM large GROUP BY country",
        "mode": "upsert",
        "key": ["country"],
        "buckets": 2,
    },
)
NAMES = tuple(one["name"] for one in PIPELINES)
PIPELINES = tuple(
    {"schedule": "every 1s"} | ({} if one["name"] == "large_by_country" else {"schema": SCHEMA}) | one
    for one in PIPELINES
)
OF_STREAM = tuple(one for one in NAMES if one != "large_by_country")


def make_order(seed, number):
    """Return the subject, the payload and the headers of an order; one in ten deletes its customer."""
    dice = random.Random(f"{seed} {number}")
    country, customer = dice.choice(COUNTRIES), dice.randrange(200)
    subject = f"orders.{country}.c{customer}"
    if dice.randrange(10) == 0:
        return subject, b"", {"KV-Operation": dice.choice(("DEL", "PURGE"))}
    order = {"country": country, "day": f"2026-11-{1 + dice.randrange(5):02}", "total": dice.randrange(100)}
    return subject, json.dumps(order).encode(), {}


def expect(seed, last):
    """Return what the tables have after the orders 1 to `last`, sorted; of customers, their last orders only."""
    groups, large, customers, countries = defaultdict(list), [], {}, defaultdict(list)
    for number in range(1, last + 1):
        subject, payload, _ = make_order(seed, number)
        customer = subject.rpartition(".")[2]
        customers.pop(customer, None)
        if not payload:
            continue
        one = json.loads(payload)
        customers[customer] = number
        groups[one["country"], one["day"]].append(one["total"])
        countries[one["country"]].append(one["total"])
        if one["total"] >= 50:
            large.append((number, one["country"], one["total"]))
    by_country = defaultdict(list)
    for _, country, total in large:
        by_country[country].append(total)
    revenue = sorted((*key, sum(a), len(a), min(a), max(a), a[-1]) for key, a in groups.items())
    return {
        "revenue": revenue,
        "revenue_followed": revenue,
        "large": sorted(large),
        "distinct_totals": sorted((country, len(set(a)), len(a)) for country, a in countries.items()),
        "customers": sorted(customers.items()),
        "large_by_country": sorted((country, len(a), sum(a)) for country, a in by_country.items()),
    }


def read_tables(store):
    """Return the columns and the sorted rows of each table, as pyiceberg reads them from the version hint."""
    found = {}
    for name in NAMES:
        table = StaticTable.from_metadata(f"{store}/_pipelines/iceberg/{name}").scan().to_arrow()
        table = table.select(sorted(table.column_names)) if name == "customers" else table
        columns = [
            pc.cast(one, "string") if str(one.type).startswith(("date", "timestamp")) else one for one in table.columns
        ]
        rows = zip(*(one.to_pylist() for one in columns), strict=True)
        found[name] = tuple(table.column_names), sorted(rows, key=repr)
    return found


def compare_with_expected(tables, expected):
    """Return a sentence for each table that has not the expected rows, or a hidden column."""
    wrongs = [
        f"{name} has a hidden column: {column}"
        for name, (columns, _) in tables.items()
        for column in columns
        if column.startswith("__")
    ]
    for name, (columns, rows) in tables.items():
        if name == "customers":
            at = columns.index("key"), columns.index("sequence")
            rows = [tuple(row[one] for one in at) for row in rows]
        if sorted(rows) != expected[name]:
            wrongs.append(f"{name} is not what Python computes: {describe(rows, expected[name])}")
    return wrongs


def compare(struck, clean):
    """Return a sentence for each table whose rows differ from those of the clean run."""
    return [
        f"{name} is not what one clean run makes: {describe(struck[name][1], clean[name][1])}"
        for name in NAMES
        if struck[name] != clean[name]
    ]


def describe(rows, wanted):
    """Say how rows differ: their numbers, and some that only one side has."""
    more, less = (sorted(set(a) - set(b), key=repr) for a, b in ((rows, wanted), (wanted, rows)))
    return f"{len(rows)} rows, not {len(wanted)}; {len(more)} only here {more[:3]}; {len(less)} missing {less[:3]}"


async def check_files(store):
    """Return a sentence for each file of the newest document that is missing or has other bytes; and their number."""
    document, wrongs = await read_document(store), []
    for one in document.files:
        path = Path(f"{store}/_pipelines/{one.path}")
        if not path.exists():
            wrongs.append(f"{one.path} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != one.sha256:
            wrongs.append(f"{one.path} has other bytes than its record")
    return len(document.files), wrongs


async def find_leftovers(store):
    """Return the objects of tables that are not among their files, and those of metadata that nothing names."""
    document, home = await read_document(store), Path(f"{store}/_pipelines")
    named = {"table": {one.path for one in document.files}, "iceberg": document.list_named()}
    return sorted(
        path
        for folder, paths in named.items()
        for one in (home / folder).rglob("*")
        if one.is_file() and (path := str(one.relative_to(home))) not in paths
    )

"""Nodes that run pipelines, as processes: a stream of orders, and what the tables should have."""

import asyncio
import json
import random
from collections import defaultdict
from pathlib import Path

import pyarrow.compute as pc
from capture_chaos_nodes import toml
from patient import PATIENCE
from pyiceberg.table import StaticTable

from capture.archive import chain
from capture.archive.chain import latest_offline
from capture.archive.iceberg_state import hint_path
from capture.archive.index.contents import load
from capture.config.streams import below
from capture.errors import NotStoredError
from capture.pipelines.document import FOLDER, Pipelines
from capture.stores import open_store
from natty.elections import leadership

STREAM = "ORDERS"
COUNTRIES = ("de", "dk", "se", "no")
SCHEMA = "country STRING, day DATE, total BIGINT"
REVENUE = {
    "name": "revenue",
    "schedule": "every 1s",
    "schema": SCHEMA,
    "sql": (
        f"SELECT country, day, sum(total) AS revenue, count(*) AS orders, last(total) AS newest FROM {STREAM}"
        " GROUP BY country, day"
    ),
    "mode": "upsert",
    "key": ["country", "day"],
    "buckets": 4,
}
LARGE = {
    "name": "large",
    "schedule": "every 1s",
    "schema": SCHEMA,
    "sql": f"SELECT sequence, country, total FROM {STREAM} WHERE total >= 50",
    "mode": "append",
}
NODE = {
    "partition": "subject:2",
    "limits": {"max_age": 0.5, "max_messages": 200},
    "sweep": {"every": 0.5},
    "compaction": {"lease": 3.0, "every": 3600.0},
}


def make_order(number):
    """Return the subject and the payload of the message with this number."""
    dice = random.Random(number)
    country = dice.choice(COUNTRIES)
    order = {"country": country, "day": f"2026-11-{1 + dice.randrange(3):02}", "total": dice.randrange(100)}
    return f"orders.{country}", json.dumps(order).encode()


async def publish(natty, first, last):
    """Publish the orders with these numbers; their sequences are the same in a new stream."""
    for number in range(first, last + 1):
        subject, payload = make_order(number)
        await natty.publish(subject, payload, msg_id=str(number))


def expected(last):
    """Return the rows that the tables have after the orders 1 to `last`, sorted."""
    groups, large = defaultdict(list), []
    for number in range(1, last + 1):
        one = json.loads(make_order(number)[1])
        groups[one["country"], one["day"]].append(one["total"])
        if one["total"] >= 50:
            large.append((number, one["country"], one["total"]))
    revenue = [(*key, sum(some), len(some), some[-1]) for key, some in groups.items()]
    return {"revenue": sorted(revenue), "large": sorted(large)}


def write_config(folder, name, store, link, pipelines, **more):
    """Write the capture.toml of a node, and return its path."""
    settings = NODE | {"stream": STREAM, "store": store, "node": name, "nats": link} | more
    text = toml(settings) + "".join(
        "\n[[pipeline]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in one.items())
        for one in pipelines
    )
    path = Path(folder) / f"{name}.toml"
    path.write_text(text)
    return path


def read_rows(store, name):
    """Return the rows of a table as pyiceberg reads them without a catalog, as dictionaries; dates are ISO texts."""
    table = StaticTable.from_metadata(f"{store}/_pipelines/iceberg/{name}").scan().to_arrow()
    assert not [one for one in table.column_names if one.startswith("__")]
    columns = [pc.cast(one, "string") if str(one.type).startswith("date") else one for one in table.columns]
    return [
        dict(zip(table.column_names, row, strict=True))
        for row in zip(*(one.to_pylist() for one in columns), strict=True)
    ]


async def read_document(store):
    """Return the newest document of the pipelines with all files; an empty one before the first."""
    home = open_store(below(store, FOLDER))
    return await load(home, await chain.read(home, await latest_offline(home, Pipelines), Pipelines))


async def are_announced(store, document, names):
    """Whether readers without a catalog find these tables as a document has them: that is so shortly after a commit."""
    home = open_store(below(store, FOLDER))
    try:
        return [str(document.iceberg[one].number).encode() for one in names] == [
            await home.get(hint_path(one)) for one in names
        ]
    except NotStoredError:
        return False


async def until_progress(store, pipelines, last):
    """Wait until each of these tables has the messages up to `last`, for readers without a catalog too.

    Return the document. Those readers see a commit a moment later than it is made.
    """
    async with asyncio.timeout(6 * PATIENCE):
        while True:
            document = await read_document(store)
            held = {one: document.progress.streams.get(f"{one} {STREAM}") for one in pipelines}
            has_all = all(one and one.held.count >= last for one in held.values())
            if has_all and await are_announced(store, document, pipelines):
                return document
            await asyncio.sleep(0.2)


async def leader_of(natty, archive=STREAM):
    """Return the name of the node that leads the pipelines."""
    subjects = natty.election(f"capture.{archive}.pipelines").subjects
    async with asyncio.timeout(2 * PATIENCE):
        while not (now := await leadership(natty.jetstream, subjects)):
            await asyncio.sleep(0.1)
    return now.node

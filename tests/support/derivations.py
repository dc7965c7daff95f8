"""Runs of a pipeline one after the other, as its leader commits them, without a leader."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from spark_blocks import parquet_block, row

from capture.archive.sequences import Sequences
from capture.pipelines.derivation import SMALL_BYTES, Derivation, Input, Part
from capture.pipelines.sql import analyse
from capture.pipelines.upkeep import Upkeep


def messages(store, name, payloads, *, stream="S", **more):
    """A block with these payloads by their sequences."""
    rows = [
        row(number, stream=stream, payload=body if isinstance(body, bytes) else json.dumps(body).encode(), **more)
        for number, body in payloads.items()
    ]
    return parquet_block(store, name, rows)


def part(stored, given=None):
    return Part(stored=stored, given="" if given is None else Sequences.from_iterable(given).to_text())


class Table:
    """A pipeline's table: the files that its runs leave."""

    small_bytes = SMALL_BYTES  # of runs that need no executors

    def __init__(self, driver, store, sql="", *, schema="", name="p", **settings):
        self.driver, self.store, self.schema, self.name = driver, store, schema, name
        self.blocks, self.tables = store.as_uri(), (store / "_pipelines").as_uri()
        found = analyse(sql) if sql else None
        self.settings = {"sql": sql, "buckets": 3, **settings}
        if found:
            facts = {"upkeep": found.upkeep, "merging": found.merging, "groups": found.groups}
            self.settings = {**facts, **self.settings}
        self.upkeep = self.settings["upkeep"]
        self.files, self.columns, self.number, self.quarantined, self.quarantine_columns = [], "", 0, [], ""

    def asked(self, new, every=(), **settings):
        given = Input(
            store=self.blocks,
            new=[part(one) if not isinstance(one, Part) else one for one in new],
            all=[part(one) if not isinstance(one, Part) else one for one in every],
            payload_schema=self.schema,
        )
        self.number += 1
        return Derivation(
            **{
                "pipeline": self.name,
                "store": self.tables,
                "folder": f"table/{self.name}/{id(self)}-{self.number}/",
                "inputs": {"S": given},
                "files": self.files,
                "columns": self.columns,
                "number": self.number,
                "small_bytes": self.small_bytes,
                **self.settings,
                **settings,
            }
        )

    async def run(self, new, every=(), **settings):
        done = await self.driver.derive(self.asked(new, every, **settings))
        kept = [one for one in self.files if one.path not in done.gone]
        assert len(kept) == len(self.files) - len(done.gone)
        self.files, self.columns = kept + done.came, done.columns
        self.quarantined += done.quarantined
        self.quarantine_columns = done.quarantine_columns or self.quarantine_columns
        return done

    def read(self, *, hidden=False, tombstones=False, files=None):
        """The rows that readers see, as a set of sorted values: in any order."""
        found = []
        for one in self.files if files is None else files:
            if one.tombstones is tombstones:
                rows = pq.read_table(self.store / "_pipelines" / one.path).to_pylist()
                assert len(rows) == one.rows
                found += [{k: v for k, v in row.items() if hidden or not k.startswith("__")} for row in rows]
        return sorted(found, key=repr)

    def types(self):
        from capture.maintenance.merge.schema_evolution import read_columns

        return {one.name: str(one.type) for one in read_columns(self.columns)}


async def check_increments(driver, store, sql, increments, *, schema, more=None, **settings):
    """Run the query over the increments one after the other; compare with the result over all at once. Return rows."""
    table = Table(driver, store, sql, schema=schema, name="steps", **settings)
    seen = []
    for new in increments:
        seen += new
        await table.run(new, seen if table.upkeep in (Upkeep.GROUPS, Upkeep.WHOLE) else [])
    whole = Table(driver, store, sql, schema=schema, name="whole", **{**settings, "upkeep": Upkeep.WHOLE})
    whole.settings |= more or {}
    await whole.run(seen, seen)
    assert repr(table.read()) == repr(whole.read())  # one NaN does not equal another
    assert table.types() == whole.types()
    return table


__all__ = ["Table", "check_increments", "messages", "part", "pa"]

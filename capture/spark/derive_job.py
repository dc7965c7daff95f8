"""Computes a pipeline's run on Spark: reads new rows, writes the files that change, and returns facts about them.

A small run, whose rows and files are few, costs little: Spark computes each query in one task, and this process reads
and writes the table's files, by the functions that executors carry out in other runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from capture.errors import PipelineError
from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.averages import settle_averages
from capture.pipelines.derivation import Derivation, Derived, OutputFile, Unit
from capture.pipelines.group_queries import GROUP, select_touched, select_with_groups
from capture.pipelines.sql import order_aggregates, order_rows
from capture.pipelines.upkeep import HIDDEN, SEQUENCE, Upkeep
from capture.spark.derive_change import summarise
from capture.spark.derive_function import call, describe_fault
from capture.spark.derive_inputs import Source, count_new, find_encrypted, load_table, size_of, spread, to_arrow
from capture.spark.derive_output import conform, mark_violations, quote, table_columns
from capture.spark.derive_task import DEAD, NEW, REASON, UNIT, Fact, Unique, Writing, write_units
from capture.spark.derive_upsert import UNIT_BYTES, Touched, Upsert, list_touched
from capture.spark.failure import sentence
from capture.spark.frames import map_in_arrow

FACTS = StructType([StructField("facts", StringType())])
PARTITION_BYTES = 32 << 20
"""About this many bytes of inputs go to one partition of a shuffle."""
MOST_PARTITIONS = 2000
BROADCAST_ROWS = 100_000
"""Up to this many keys are sent to all tasks, instead of sorting the table by its keys."""
SMALL_ROWS = 100_000
"""A run with more new rows is not small, and one whose query has more rows is not small any more."""
MOST_PLAN = 20_000
"""Characters of a plan that are kept."""


def derive(spark: SparkSession, asked: Derivation, held: DataFrame | None = None) -> Derived:
    """Carry out a run. PipelineError, whose text names the pipeline, for any fault while Spark itself works.

    `held` has the messages of inputs that name held ones. Its session is then that of the run.
    """
    run = _Run(spark.newSession() if held is None else held.sparkSession, asked, held)
    try:
        return msgspec.structs.replace(run.carry_out(), plan=run.explain())
    except Exception as error:
        said = describe_fault(error) if asked.python and isinstance(error, PySparkException) else sentence(error)
        raise PipelineError(f"pipeline {asked.pipeline}: {said}", run.explain()) from error
    finally:
        run.forget()


class _Run:
    """One run of a pipeline, in a session of its own, which has the names of its inputs."""

    def __init__(self, scope: SparkSession, asked: Derivation, held: DataFrame | None) -> None:
        self._scope = scope
        self._asked = asked
        self._sources = {
            name: Source(scope, one, held, latest=bool(asked.latest)) for name, one in asked.inputs.items()
        }
        self._identity = asked.key or list(asked.groups)
        self._persisted: list[DataFrame] = []
        self._held: pa.Table | None = None
        self._last: DataFrame | None = None
        self._size_jobs()

    def forget(self) -> None:
        """Free what was kept for the run."""
        for one in self._persisted:
            one.unpersist()

    def explain(self) -> str:
        """Return Spark's plan of what it computed last; "" if it computed nothing."""
        try:
            jvm = self._scope.sparkContext._jvm
            assert jvm is not None
            assert self._last is not None
            said = jvm.PythonSQLUtils.explainString(self._last._jdf.queryExecution(), "formatted")
            return str(said)[:MOST_PLAN]
        except Exception:  # it is only for people
            return ""

    def carry_out(self) -> Derived:
        """Write the run's files; return facts about them."""
        asked = self._asked
        if path := next(filter(None, map(find_encrypted, asked.inputs.values())), ""):
            raise PipelineError(f"it reads {path}, which is encrypted, and its table would not be")
        rows_in = sum(count_new(one) for one in asked.inputs.values())
        if not rows_in and asked.columns and asked.upkeep is not Upkeep.WHOLE:
            return Derived(columns=asked.columns)
        match asked.upkeep:
            case Upkeep.ROWS if not asked.key:
                done = self._write(self._compute(asked.sql, new=True), gone=[])
            case Upkeep.ROWS:
                done = self._upsert(self._find_latest() if asked.latest else self._compute_upserts())
            case Upkeep.MERGE:
                done = self._merge()
            case Upkeep.GROUPS:
                done = self._compute_groups()
            case _:
                done = self._compute_all()
        inferred = {name: one.inferred for name, one in self._sources.items() if one.inferred}
        return msgspec.structs.replace(done, rows_in=rows_in, payload_schemas=inferred)

    def _size_jobs(self) -> None:
        asked, conf = self._asked, self._scope.conf
        inputs = sum(map(size_of, asked.inputs.values()))
        size = inputs + sum(one.bytes for one in asked.files)
        cores = self._scope.sparkContext.defaultParallelism
        self._partitions = min(MOST_PARTITIONS, max(cores, -(-size // PARTITION_BYTES)))
        conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "10000")  # no job that only lists files
        rows = sum(map(count_new, asked.inputs.values()))
        self._set_small(inputs <= asked.small_bytes and rows <= SMALL_ROWS)

    def _set_small(self, is_small: bool) -> None:
        """Say whether the rest of the run is small: Spark then shuffles nothing, and compiles no code for its plans."""
        self._is_small = is_small
        self._scope.conf.set("spark.sql.shuffle.partitions", "1" if is_small else str(self._partitions))
        for name in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
            self._scope.conf.set(name, str(not is_small).lower())

    # --- the four upkeeps

    def _compute(self, sql: str, *, new: bool) -> DataFrame:
        """Return what the query, or the user's function, makes of the new rows or of all."""
        if self._asked.python:
            return call(self._asked, self._scope, self._sources, new=new)
        return self._query(sql, {name: one.new() if new else one.all() for name, one in self._sources.items()})

    def _compute_upserts(self) -> DataFrame:
        """Return the rows of new messages, with their order. Those of a function may have it; the last run is last."""
        if not self._asked.python:
            return self._compute(order_rows(self._asked.sql), new=True).withColumn(DEAD, F.lit(False))
        rows = self._compute("", new=True)
        order = F.col(SEQUENCE) if SEQUENCE in rows.columns else F.lit(self._asked.number)
        return rows.withColumn(SEQUENCE, order.cast("long")).withColumn(DEAD, F.lit(False))

    def _find_latest(self) -> DataFrame:
        """Return the new messages with their key first. Those without a key are left out: no query could do that."""
        [source], [key] = self._sources.values(), self._asked.key
        messages = source.new()
        others = [F.col(quote(one)) for one in messages.columns if one.lower() != key.lower()]
        rows = messages.select(F.expr(self._asked.latest).alias(key), *others)
        return rows.where(F.col(quote(key)).isNotNull())

    def _upsert(self, change: DataFrame) -> Derived:
        """Write the rows that are now the last with their key, among these and those of the table."""
        asked, columns = self._asked, self._columns_of(change.schema)
        change = self._with_unit(conform(change, columns, [SEQUENCE, DEAD])).withColumn(NEW, F.lit(True))
        change = self._keep(mark_violations(change, asked.expect, checked=~F.col(DEAD)))
        units, old = self._find_touched(change)
        writing = self._plan_writing(change, columns, hidden=[SEQUENCE], unique="last")
        touched = list_touched(units, old)
        if self._held is not None and all(one.bytes <= UNIT_BYTES for one in touched):
            facts = self._upsert_few(Upsert(writing, self._held), touched)
        else:
            rows = change
            if old:
                schema = _spark_schema([*columns, pa.field(SEQUENCE, pa.int64())])
                table = self._with_unit(load_table(self._scope, asked.store, old, schema))
                rows = change.unionByName(table.withColumn(NEW, F.lit(False)), allowMissingColumns=True)
            facts = self._write_rows(rows, writing)
        return self._conclude(facts, [one.path for one in old], columns, writing)

    def _upsert_few(self, upsert: Upsert, touched: Sequence[Touched]) -> list[Fact]:
        """Put a change that this process holds into the files of its units: in executors, unless those are small."""
        if self._is_small:
            packed = pa.RecordBatch.from_pydict({"unit": [msgspec.json.encode(one).decode() for one in touched]})
            return _read_facts(pa.Table.from_batches(upsert(iter([packed]))))
        rows = spread(self._scope, "unit", touched, sum(one.bytes for one in touched))
        return _read_facts(map_in_arrow(rows, upsert, FACTS).toArrow())

    def _merge(self) -> Derived:
        asked, scope, merging = self._asked, self._scope, self._asked.merging
        assert merging is not None
        plain = self._compute(settle_averages(merging, {}).partial, new=True)
        merging = settle_averages(merging, {one.name: one.dataType.simpleString() for one in plain.schema.fields})
        change = self._keep(self._with_unit(scope.sql(merging.partial)))
        columns = self._columns_of(scope.sql(asked.sql).schema)
        _, old = self._find_touched(change)
        kinds = StructType([one for one in change.schema.fields if one.name != UNIT])
        states = change.select(*map(quote, kinds.names))
        if old:
            table = load_table(scope, asked.store, old, kinds, here=self._is_small)
            states = states.unionByName(table.select(*map(quote, kinds.names)))
        self._gather(states).createOrReplaceTempView("__states")
        merged = scope.sql(merging.merged)
        found = {one.name: one.dataType.simpleString() for one in merged.schema.fields}
        cast = merged.select(*(  # sums of decimals grow; a nested type can't be cast to itself if its nulls differ
            F.col(quote(one.name)) if found[one.name] == one.dataType.simpleString()
            else F.col(quote(one.name)).cast(one.dataType).alias(one.name)
            for one in kinds.fields
        ))  # fmt: skip
        cast.createOrReplaceTempView("__merged")
        rows = conform(scope.sql(merging.final_with_states), columns, merging.states)
        if asked.expect:
            rows = self._with_new(rows, change).withColumn(DEAD, F.lit(False))
        return self._write(
            self._with_unit(rows), gone=[one.path for one in old], columns=columns, hidden=merging.states, states=True
        )

    def _compute_groups(self) -> Derived:
        asked = self._asked
        [(name, source)] = self._sources.items()
        touched = self._query(select_touched(asked.sql, asked.groups), {name: source.new()})
        everything = source.all()
        keyed = self._query(select_with_groups(asked.sql, asked.groups), {name: everything})
        sql = order_aggregates(asked.sql)
        result = self._query(sql, {name: everything})
        columns = self._columns_of(result.schema)
        kinds = {one.name: one.dataType for one in _spark_schema(columns).fields}
        touched = self._keep(self._with_unit(
            touched.select(*(F.col(quote(one)).cast(kinds[one]).alias(one) for one in asked.groups))
        ))  # fmt: skip
        _, old = self._find_touched(touched, nulls=True)  # of messages that WHERE may leave out: results are checked
        few = F.broadcast(touched) if self._count <= BROADCAST_ROWS else touched
        on = [keyed[quote(GROUP + one)].eqNullSafe(few[quote(one)]) for one in asked.groups]
        some = keyed.join(few, on, "left_semi").select(*map(quote, everything.columns))
        rows = conform(self._query(sql, {name: some}), columns, [])
        if old:
            table = load_table(self._scope, asked.store, old, _spark_schema(columns), here=self._is_small).drop(DEAD)
            same = [table[quote(one)].eqNullSafe(few[quote(one)]) for one in asked.groups]
            kept = table.join(few, same, "left_anti")
            rows = rows.withColumn(NEW, F.lit(True)).unionByName(kept.withColumn(NEW, F.lit(False)))
        else:
            rows = rows.withColumn(NEW, F.lit(True))
        gone = [one.path for one in old]
        return self._write(self._with_unit(rows), gone=gone, columns=columns, unique="once")

    def _compute_all(self) -> Derived:
        rows = self._compute(order_aggregates(self._asked.sql) if self._asked.sql else "", new=False)
        unique: Unique = "once" if self._asked.key else ""
        return self._write(rows, gone=[one.path for one in self._asked.files], unique=unique)

    # --- parts of them

    def _query(self, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        for name, one in frames.items():
            one.createOrReplaceTempView(quote(name))
        return self._scope.sql(sql)

    def _columns_of(self, result: StructType) -> pa.Schema:
        return table_columns(result, self._asked.columns, self._asked.key, self._asked.partition)

    def _keep(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a change so that they are computed once."""
        self._held = self._collect(rows)
        if self._held is not None:
            return self._scope.createDataFrame(self._held, rows.schema)
        self._persisted.append(rows.persist())
        return rows

    def _gather(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a small run in one partition: then no shuffle follows."""
        return rows.coalesce(1) if self._is_small else rows

    def _collect(self, rows: DataFrame) -> pa.Table | None:
        """Return the rows of a small run; None if they are many, or the run is not small."""
        if not self._is_small:
            return None
        self._last = rows.limit(SMALL_ROWS + 1)
        found = self._last.toArrow()
        if found.num_rows <= SMALL_ROWS:
            return found
        self._set_small(False)
        return None

    def _with_unit(self, rows: DataFrame) -> DataFrame:
        bucket: Column = F.lit(0)
        if self._identity:
            hashed = F.hash(*(F.col(quote(one)) for one in self._identity))
            bucket = F.pmod(hashed, F.lit(self._asked.buckets))
        return rows.withColumn(UNIT, bucket.cast("int"))

    def _with_new(self, rows: DataFrame, change: DataFrame) -> DataFrame:
        """Return rows with NEW: whether the change has their key."""
        keys = change.select(*(F.col(quote(one)).alias(f"{HIDDEN}key{at}") for at, one in enumerate(self._identity)))
        keys = keys.withColumn(NEW, F.lit(True))
        on = [rows[quote(one)].eqNullSafe(keys[f"{HIDDEN}key{at}"]) for at, one in enumerate(self._identity)]
        joined = rows.join(keys, on, "left").drop(*(one for one in keys.columns if one != NEW))
        return joined.withColumn(NEW, F.coalesce(F.col(NEW), F.lit(False)))

    def _find_touched(self, change: DataFrame, *, nulls: bool = False) -> tuple[list[Unit], list[OutputFile]]:
        """Return the units that a change is in, which was kept, and the table's files of these units.

        PipelineError if a key is null, without `nulls`.
        """
        asked = self._asked
        found = summarise(change if self._held is None else self._held, asked.partition, asked.key)
        self._count = found.rows
        if found.null and not nulls:
            raise PipelineError(found.null)
        named = {one.to_text() for one in found.units}
        touched = [one for one in asked.files if one.unit.to_text() in named]
        if sum(one.bytes for one in touched) > asked.small_bytes:
            self._set_small(False)
        return found.units, touched

    # --- output

    def _write(
        self,
        rows: DataFrame,
        *,
        gone: list[str],
        columns: pa.Schema | None = None,
        hidden: Sequence[str] = (),
        unique: Unique = "",
        states: bool = False,
    ) -> Derived:
        if columns is None:
            columns = self._columns_of(rows.schema)
            rows = self._with_unit(conform(rows, columns, []))
        writing = self._plan_writing(rows, columns, hidden=hidden, unique=unique, states=states)
        facts = self._write_rows(mark_violations(rows, self._asked.expect), writing)
        return self._conclude(facts, gone, columns, writing)

    def _plan_writing(
        self, rows: DataFrame, columns: pa.Schema, *, hidden: Sequence[str], unique: Unique, states: bool = False
    ) -> Writing:
        """Return how rows with these visible and hidden columns become files. PipelineError if names contradict."""
        asked, kinds = self._asked, {one.name: one for one in rows.schema.fields}
        if asked.on_violation == "quarantine" and asked.expect and REASON in (one.lower() for one in columns.names):
            raise PipelineError(
                f"its column {REASON} has the name of the one that a quarantine adds: rename it with AS"
            )
        return Writing(
            store=asked.store,
            folder=asked.folder,
            columns=pa.schema([*columns, *(pa.field(one, to_arrow(kinds[one])) for one in hidden)]),
            partition=asked.partition,
            key=self._identity,
            required=asked.key,
            unique=unique,
            conditions=asked.expect,
            on_violation=asked.on_violation,
            keeps_state=states and bool(asked.expect),
        )

    def _write_rows(self, rows: DataFrame, writing: Writing) -> list[Fact]:
        """Write the files of these rows, here if they are few, and return what the tasks report."""
        if (few := self._collect(self._arrange(rows, writing.unique))) is not None:
            return _read_facts(pa.Table.from_batches(write_units(writing, iter(few.to_batches()))))
        self._last = map_in_arrow(self._arrange(rows, writing.unique), partial(write_units, writing), FACTS)
        return _read_facts(self._last.toArrow())

    def _arrange(self, rows: DataFrame, unique: Unique) -> DataFrame:
        """Return the rows so that those of a unit follow each other, sorted by key."""
        by = [*self._asked.partition, UNIT]
        if not self._identity and not self._asked.partition:
            return rows.coalesce(1 if self._is_small else self._partitions)
        order = [F.col(quote(one)) for one in (*by, *self._identity)]
        if unique == "last":
            order += [F.col(SEQUENCE).desc(), F.col(NEW).desc()]
        together = rows.coalesce(1) if self._is_small else rows.repartition(*map(quote, by))
        return together.sortWithinPartitions(*order)

    def _conclude(self, facts: Sequence[Fact], gone: list[str], columns: pa.Schema, writing: Writing) -> Derived:
        for one in facts:
            if one.error:
                raise PipelineError(one.error)
        violations: dict[str, int] = {}
        for one in facts:
            for number, count in one.violations.items():
                text = self._asked.expect[number]
                violations[text] = violations.get(text, 0) + count
        if violations and self._asked.on_violation == "fail":
            said = ", ".join(f"{text!r}: {count:,}" for text, count in violations.items())
            example = next(one.example for one in facts if one.example)
            raise PipelineError(f"rows do not meet its conditions ({said}), for example: {example}")
        came = [one.file for one in facts if one.file and not one.quarantined]
        quarantined = [one.file for one in facts if one.file and one.quarantined]
        return Derived(
            came=came,
            gone=gone,
            columns=write_columns(columns),
            rows_out=sum(one.rows for one in came if not one.tombstones),
            violations=violations,
            quarantined=quarantined,
            quarantine_columns=write_columns(writing.quarantine_columns) if quarantined else "",
        )


def _spark_schema(fields: Sequence[pa.Field] | pa.Schema) -> StructType:
    return StructType([StructField(one.name, from_arrow_type(one.type)) for one in fields])


def _read_facts(said: pa.Table) -> list[Fact]:
    return [msgspec.json.decode(one, type=Fact) for one in said["facts"].to_pylist()]

"""Spark's driver as a child process: requests are lines of standard input, answers are lines of standard output."""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Never

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.errors import PipelineError
from capture.maintenance.engine import FileGroup, Merged
from capture.maintenance.merge.inputs import columns_of
from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.derivation import Part
from capture.spark import session
from capture.spark.derive_job import derive
from capture.spark.derive_pack import pack
from capture.spark.derive_task import Fact, TableFile
from capture.spark.derive_upsert import Touched
from capture.spark.failure import sentence
from capture.spark.merge_job import Merger
from capture.spark.merge_task import StoreAccess
from capture.spark.protocol import (
    Answer,
    Derive,
    Done,
    Follow,
    Merge,
    MergeDone,
    NextBatch,
    Pack,
    Pong,
    Query,
    Request,
    Start,
    Unfollow,
)
from capture.spark.query import query
from capture.spark.session import ENCRYPTS
from capture.spark.stream_query import StreamQueries
from capture.stores import open_store

REQUESTS_AT_ONCE = 4

# msgspec prepares a type when it is first decoded, and crashes (0.22) if two threads do that at once: it is done here
# for all that the driver's threads decode.
_decode_request = msgspec.json.Decoder(Request).decode
for _kind in (Fact, Merged, Part, Stored, TableFile, Touched):
    msgspec.json.Decoder(_kind)

OOM_SCORE_FILE, OOM_SCORE = Path("/proc/self/oom_score_adj"), 500
"""Linux adds half of the machine's memory to the size of our processes when it chooses which one to kill."""


def main() -> None:
    """Serve until standard input ends."""
    _be_killed_first()
    os.environ["TZ"] = "UTC"  # of the timestamps in answers
    time.tzset()
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # about a pandas that is not used
    logging.getLogger("SQLQueryContextLogger").disabled = True  # repeats in JSON what the answer says
    requests, answers = _take_stdin(), Answers(_take_stdout())
    start = msgspec.json.decode(requests.readline(), type=Start)
    try:
        with session.start(start.options) as spark:
            answers.send_result(start.id, _pong(spark))
            Driver(spark, answers).serve(requests)
    except Exception as error:
        _print_fault(error)
        answers.send_failure(start.id, error)
        sys.exit(1)


class Answers:
    """Writes whole answers, from any thread."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send_result(self, number: int, result: msgspec.Struct) -> None:
        """Send the result of the request with this number."""
        self._write(Answer(id=number, ok=True, result=msgspec.Raw(msgspec.json.encode(result))))

    def send_failure(self, number: int, error: Exception) -> None:
        """Report that the request with this number failed, with the reason."""
        of_pipeline = isinstance(error, PipelineError)
        plan = error.plan if isinstance(error, PipelineError) else ""
        self._write(Answer(id=number, error=sentence(error), of_pipeline=of_pipeline, plan=plan))

    def _write(self, answer: Answer) -> None:
        with self._lock:
            self._stream.write(msgspec.json.encode(answer) + b"\n")
            self._stream.flush()


class Driver:
    """Answers requests from one Spark session."""

    def __init__(self, spark: SparkSession, answers: Answers) -> None:
        self._spark = spark
        self._answers = answers
        self._requests = ThreadPoolExecutor(REQUESTS_AT_ONCE, "request")
        self._queries = StreamQueries(spark, answers.send_result, self._fail)
        self._groups = ThreadPoolExecutor(spark.sparkContext.defaultParallelism, "group")  # each a job of one task

    def serve(self, lines: IO[bytes]) -> None:
        """Take requests until `lines` ends; requests that are still running then are abandoned."""
        for line in lines:
            self._requests.submit(self._serve_one, line)
        self._queries.close()
        for pool in (self._requests, self._groups):
            pool.shutdown(wait=False, cancel_futures=True)

    def _serve_one(self, line: bytes) -> None:
        number = -1
        try:
            request = _decode_request(line)
            number = request.id
            if isinstance(request, NextBatch):  # a query may have none for hours: its own thread answers
                self._queries.find(request.pipeline).ask(number, request.after)
            else:
                self._answers.send_result(number, self._result(request))
        except Exception as error:
            self._fail(number, error)

    def _fail(self, number: int, error: Exception) -> None:
        """Report that a request failed. Without a JVM, this process ends instead."""
        self._end_without_jvm()
        if not isinstance(error.__cause__ or error, AnalysisException):  # otherwise only the query was wrong
            _print_fault(error)
        self._answers.send_failure(number, error)

    def _end_without_jvm(self) -> None:
        """End if the JVM or its session has ended: the next request starts both again. Here all others would fail."""
        try:
            _pong(self._spark)
        except Exception:
            _end_with("Spark's JVM has ended: it was killed, or had no memory left")
        if self._spark.sparkContext._jsc is None:
            _end_with("a pipeline's function has stopped Spark's session")

    def _result(self, request: Request) -> msgspec.Struct:
        match request:
            case Merge():
                return self._merge(request)
            case Query():
                self._use_own_pool()
                return query(self._spark, request)
            case Derive():
                self._use_own_pool()
                asked = request.derivation
                held = next((one.held for one in asked.inputs.values() if one.held), None)
                batch = self._queries.find(asked.pipeline).take(held.number) if held else None
                return derive(self._spark, asked, batch)
            case Pack():
                return pack(request.packing)
            case Follow():
                self._queries.start(request.following)
                return Done()
            case Unfollow():
                self._queries.stop(request.pipeline)
                return Done()
            case _:
                return _pong(self._spark)

    def _merge(self, request: Merge) -> MergeDone:
        """Merge all groups, side by side, and report the reasons of failures. When it answers, no job is running."""
        keys, objects = Keys.load(request.key_file), [one for group in request.groups for one in group.inputs]
        table = next((group.columns for group in request.groups), "")
        columns = asyncio.run(columns_of(open_store(request.store), objects, keys, table))
        encrypted = self._spark.sparkContext.getConf().get(ENCRYPTS, "false") == "true"
        merger = Merger(self._spark, StoreAccess(request.store, request.key_file, encrypted), columns)
        merged = {group.output: Merged(failed=why) for group in request.groups if (why := columns.why_not(group))}
        sound = [group for group in request.groups if group.output not in merged]
        small = [group for group in sound if group.bytes <= request.small_bytes and not group.bounds]
        large = [group for group in sound if group not in small]
        jobs = [self._groups.submit(self._together, merger, small)] if small else []
        jobs += [self._groups.submit(self._alone, merger, group) for group in large]
        for job in jobs:
            merged |= job.result()
        if any(one.failed for one in merged.values()):
            self._end_without_jvm()
        run = write_columns(columns.run)
        return MergeDone(
            merged=[msgspec.structs.replace(merged[group.output], columns=run) for group in request.groups]
        )

    def _together(self, merger: Merger, groups: list[FileGroup]) -> dict[str, Merged]:
        """Return the results of small file groups, by their outputs."""
        self._use_own_pool()
        try:
            answers = merger.merge_small(groups)
        except Exception as error:
            _print_fault(error)
            answers = [Merged(failed=sentence(error)) for _ in groups]
        return {group.output: merged for group, merged in zip(groups, answers, strict=True)}

    def _alone(self, merger: Merger, group: FileGroup) -> dict[str, Merged]:
        """Return the result of a large file group, by its output."""
        self._use_own_pool()
        try:
            return {group.output: merger.merge(group)}
        except Exception as error:
            _print_fault(error)
            return {group.output: Merged(failed=sentence(error))}

    def _use_own_pool(self) -> None:
        """Give the jobs of this thread their share of the cores: FAIR shares between pools, not within one."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)


def _pong(spark: SparkSession) -> Pong:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return Pong(spark=spark.version, java=jvm.java.lang.System.getProperty("java.version"))


def _print_fault(error: Exception) -> None:
    """Print the traceback of an exception. On a full disk that fails, and must not cost the answer."""
    with suppress(OSError):
        traceback.print_exception(error)


def _end_with(reason: str) -> Never:
    with suppress(OSError):
        print(reason, file=sys.stderr, flush=True)
    os._exit(1)


def _be_killed_first() -> None:
    """Let Linux kill this process, its JVM or a Python worker before the node, if memory runs out.

    They inherit the score. Elsewhere, and where the score is higher already or can't be set, nothing changes.
    """
    with suppress(OSError, ValueError):
        if int(OOM_SCORE_FILE.read_text()) < OOM_SCORE:
            OOM_SCORE_FILE.write_text(str(OOM_SCORE))


def _take_stdin() -> IO[bytes]:
    """Return standard input for requests only; for the user's code, and the programs that it starts, it is empty."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return requests


def _take_stdout() -> IO[bytes]:
    """Return standard output for answers only; everything else that we or the JVM print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers

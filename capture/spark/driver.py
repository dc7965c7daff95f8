"""Spark's driver as a child process: requests are lines of standard input, answers are lines of standard output."""

import logging
import os
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from typing import IO

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from capture.compact import Group, Merged
from capture.errors import SparkError
from capture.spark import session
from capture.spark.failure import sentence
from capture.spark.merge import merge
from capture.spark.protocol import Answer, Merge, MergeDone, Pong, Query, Request, Start
from capture.spark.query import query

GROUPS_AT_ONCE = 2
"""Groups that are merged side by side: each is one job of one task."""

REQUESTS_AT_ONCE = 4


def main() -> None:
    """Serve until standard input ends."""
    os.environ["TZ"] = "UTC"  # of the timestamps in answers
    time.tzset()
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # about a pandas that nobody uses
    logging.getLogger("SQLQueryContextLogger").disabled = True  # says in JSON what the answer says
    requests, answers = sys.stdin.buffer, Answers(_taken_stdout())
    start = msgspec.json.decode(requests.readline(), type=Start)
    try:
        with session.start(start.options) as spark:
            answers.done(start.id, _pong(spark))
            Driver(spark, answers).serve(requests)
    except Exception as error:
        traceback.print_exc()
        answers.failed(start.id, sentence(error))
        sys.exit(1)


class Answers:
    """Writes answers, each whole, whichever thread it comes from."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def done(self, number: int, result: msgspec.Struct) -> None:
        """The request of this number has this result."""
        self._write(Answer(id=number, ok=True, result=msgspec.Raw(msgspec.json.encode(result))))

    def failed(self, number: int, reason: str) -> None:
        """The request of this number failed, for this reason."""
        self._write(Answer(id=number, error=reason))

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
        self._groups = ThreadPoolExecutor(GROUPS_AT_ONCE, "group")

    def serve(self, lines: IO[bytes]) -> None:
        """Take requests until `lines` ends; what is under way then is given up."""
        for line in lines:
            self._requests.submit(self._serve_one, line)
        for pool in (self._requests, self._groups):
            pool.shutdown(wait=False, cancel_futures=True)

    def _serve_one(self, line: bytes) -> None:
        number = -1
        try:
            request = msgspec.json.decode(line, type=Request)
            number = request.id
            self._answers.done(number, self._result(request))
        except Exception as error:
            if not isinstance(error, AnalysisException):  # the query was wrong, not we
                traceback.print_exc()
            self._answers.failed(number, sentence(error))

    def _result(self, request: Request) -> msgspec.Struct:
        match request:
            case Merge():
                return self._merge(request)
            case Query():
                self._in_pool("query")
                return query(self._spark, request.store, request.views, request.sql, limit=request.limit)
            case _:
                return _pong(self._spark)

    def _merge(self, request: Merge) -> MergeDone:
        """All groups, or the first error after all have ended: no job is left running behind an answer."""
        jobs = [self._groups.submit(self._merge_one, request.store, group) for group in request.groups]
        for group, job in zip(request.groups, jobs, strict=True):
            if (error := job.exception()) is not None:
                wait(jobs)
                raise SparkError(f"{group.output}: {sentence(error)}") from error
        return MergeDone(merged=[job.result() for job in jobs])

    def _merge_one(self, store_url: str, group: Group) -> Merged:
        self._in_pool("merge")
        return merge(self._spark, store_url, group, stored_ns=time.time_ns())

    def _in_pool(self, name: str) -> None:
        """So that a long merge does not hold up a query: FAIR shares between pools."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def _pong(spark: SparkSession) -> Pong:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return Pong(spark=spark.version, java=jvm.java.lang.System.getProperty("java.version"))


def _taken_stdout() -> IO[bytes]:
    """Standard output for answers alone; what else is printed, here or by the JVM, goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers

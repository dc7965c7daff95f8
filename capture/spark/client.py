"""The client of Spark in a child process: merges file groups, computes pipelines, answers queries."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from capture.archive.encryption import VARIABLE
from capture.errors import SparkError
from capture.maintenance.engine import FileGroup, Merged
from capture.pipelines.derivation import Batch, Derivation, Derived, Following, Input, PackedFiles, Packing, Part
from capture.spark import class_data
from capture.spark.child import Child, Result, Run, run_alone
from capture.spark.java import choose
from capture.spark.options import SparkOptions
from capture.spark.protocol import (
    DEFAULT_LIMIT,
    SMALL_BYTES,
    Derive,
    Done,
    Follow,
    Merge,
    MergeDone,
    NextBatch,
    Pack,
    Ping,
    Pong,
    Query,
    Request,
    Rows,
    Unfollow,
    View,
)
from capture.stores.own_store import is_own
from natty.errors import how_to_install

FIRST_START = "Spark starts for the first time here: an archive of its classes is made first, which takes a minute"

log = logging.getLogger("capture.spark.client")


class SparkDriver:
    """Runs Spark in a child process, starts it at first use, and again after `kill` or its death.

    `run` starts the child beside a guard: a term's `run_process`, or `run_alone`; with either, it ends with us.
    Its standard error is appended to the file `log`; without `log` its last lines are still quoted when it dies.
    `key_file` has the keys of encrypted objects for driver and executors; without it they are in their CAPTURE_KEYS. If
    there are keys, Spark's own temporary files are encrypted, too. `variables` are set in the environment of its next
    child, for streaming queries: who reads its streams, and the password.
    """

    def __init__(
        self, options: SparkOptions | None = None, *, log: Path | None = None, run: Run = run_alone, key_file: str = ""
    ) -> None:
        secret = bool(key_file or os.environ.get(VARIABLE))
        self._options = msgspec.structs.replace(options or SparkOptions(), encrypted=secret)
        self.variables: Mapping[str, str] = {}
        self._key_file = key_file and str(Path(key_file).absolute())
        self._log = log
        self._run = run
        self._child: Child | None = None
        self._starting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"SparkDriver({self._options!r}, {self._child!r})"

    async def __aenter__(self) -> "SparkDriver":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.close() if kind is None else self.kill())

    @property
    def session(self) -> int | None:
        """The session id of guard, driver, JVM and workers; None while none runs."""
        return None if self._child is None else self._child.session

    async def merge(
        self, store_url: str, groups: Sequence[FileGroup], *, small_bytes: int = SMALL_BYTES
    ) -> list[Merged]:
        """Compact every file group into its outputs; return the results in their order. SparkError if Spark ends.

        Groups of up to `small_bytes` are merged in one job. Each other group has its own job, and these run side by
        side. If it is cancelled, it kills the whole child: when it returns, no process works on the file groups.
        """
        request = Merge(
            store=_absolute(store_url), groups=list(groups), key_file=self._key_file, small_bytes=small_bytes
        )
        try:
            return (await self._ask(request, MergeDone)).merged
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def derive(self, asked: Derivation) -> Derived:
        """Compute a pipeline's run: write its files, and return facts about them.

        PipelineError, with Spark's plan, if its query, its data or the user's function are at fault; SparkError if
        Spark ends. If it is cancelled, it kills the whole child: when it returns, no process works on the run.
        """
        inputs = {name: _complete(one, self._key_file) for name, one in asked.inputs.items()}
        whole = msgspec.structs.replace(asked, store=_absolute(asked.store), inputs=inputs)
        try:
            return await self._ask(Derive(derivation=whole), Derived)
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def pack(self, asked: Packing) -> PackedFiles:
        """Merge small files of a pipeline's table in the driver's process; return facts about the merged ones.

        PipelineError if none can be merged; SparkError if Spark ends. If it is cancelled, the driver stops by itself
        when the seconds of the merge are over: other pipelines do not lose their runs.
        """
        whole = msgspec.structs.replace(asked, store=_absolute(asked.store))
        return await self._ask(Pack(packing=whole), PackedFiles)

    async def follow(self, asked: Following) -> None:
        """Start the pipeline's streaming query. It is replaced if there is one. SparkError if it does not start."""
        await self._ask(Follow(following=asked), Done)

    async def next_batch(self, pipeline: str, after: int) -> Batch:
        """Return the next batch with messages, as soon as there is one; the batch with the number `after` is let go.

        A call that is cancelled loses no batch. SparkError if the query has ended, with its reason.
        """
        if self._child is None or self._child.ended:
            raise SparkError("Spark's driver has ended, and with it the streaming query")
        return await self._child.ask(NextBatch(pipeline=pipeline, after=after), Batch)

    async def unfollow(self, pipeline: str) -> None:
        """End the pipeline's streaming query, if it runs. SparkError if Spark ends."""
        if self._child is not None and not self._child.ended:
            await self._child.ask(Unfollow(pipeline=pipeline), Done)

    async def query(self, store_url: str, views: Mapping[str, View], sql: str, *, limit: int = DEFAULT_LIMIT) -> Rows:
        """Return the result of `sql` over these views, at most `limit` rows. Raises SparkError with Spark's reason."""
        request = Query(store=_absolute(store_url), views=views, sql=sql, limit=limit, key_file=self._key_file)
        return await self._ask(request, Rows)

    async def ping(self) -> Pong:
        """Return the running versions; start Spark if it does not run. Raises SparkError if it does not start."""
        return await self._ask(Ping(), Pong)

    async def kill(self) -> None:
        """End driver, JVM and workers at once; return when all have ended. The next request starts them again."""
        child, self._child = self._child, None
        if child is not None:
            await child.kill()

    async def close(self) -> None:
        """End the child in an orderly way."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def _ask(self, request: Request, kind: type[Result]) -> Result:
        return await (await self._ensure_child()).ask(request, kind)

    async def _ensure_child(self) -> Child:
        async with self._starting:
            if self._child is not None and self._child.ended:
                await self.kill()  # remove what is left of it
            if self._child is None:
                if find_spec("pyspark") is None:
                    raise SparkError(explain_not_installed())
                if self._options.class_data and not class_data.is_made(choose(self._options.java)):
                    level = logging.WARNING if sys.stderr.isatty() else logging.INFO  # a person may be waiting, or not
                    log.log(level, FIRST_START, extra={"action": "class_data"})
                self._child = await Child.start(self._options, self._log, self._run, self.variables)
            return self._child


def explain_not_installed() -> str:
    """Return a sentence that says how to install Spark."""
    return f"Spark is not installed here; {how_to_install('spark')}"


def unavailable(options: SparkOptions) -> str:
    """Return why Spark can't run here; "" if it can, as far as can be checked without starting it. May block."""
    if None in (find_spec("pyspark"), find_spec("pyiceberg")):
        return explain_not_installed()
    try:
        choose(options.java)
    except SparkError as error:
        return str(error)
    return ""


def _complete(given: Input, key_file: str) -> Input:
    """Return the input with paths that are complete, with our keys if it has none, without sets that Spark ignores."""
    keys = str(Path(given.key_file).absolute()) if given.key_file else key_file
    new, every = ([_shorten(one) for one in parts] for parts in (given.new, given.all))
    return msgspec.structs.replace(given, store=_absolute(given.store), key_file=keys, new=new, all=every)


def _shorten(part: Part) -> Part:
    return msgspec.structs.replace(part, stored=msgspec.structs.replace(part.stored, sequences=b""))


def _absolute(store_url: str) -> str:
    """Return an absolute URL: the child works in its own folder, where a relative path means another place."""
    return store_url if "://" in store_url or is_own(store_url) else str(Path(store_url).absolute())

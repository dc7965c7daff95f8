"""`capture run`: captures streams until it is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capture.archive.stored_formats import FORMATS
from capture.cli import settings
from capture.config.settings import CaptureConfig, Logging
from capture.config.streams import each
from capture.config.workers import count_workers
from capture.errors import CaptureError, ConfigError
from capture.node.shutdown import STOPS
from capture.node.supervisor import Supervisor, life
from capture.node.worker_reports import VARIABLE, Family
from natty import NattyError
from natty.cli import connect
from natty.cli.ask import seconds
from natty.cli.run import EXIT_ERROR, LogFormat, LogLevel, complaint, configure_logging, run_async, sentences
from natty.errors import how_to_install
from natty.metrics.pages import Guard, guard_of

if TYPE_CHECKING:  # a supervisor does not import what captures: it needs half of the memory
    from capture.node.node import Node
    from capture.node.nodes import Several
    from capture.node.worker import Worker

COLLECT_AFTER = 500_000, 50, 100
"""When the collector of cycles runs (`gc.set_threshold`): it visits all messages, which are many and in no cycle."""

FREED_BYTES = 64 << 20
"""Freed memory that the C library keeps for the next blocks: to take it from the system again costs page faults."""
LARGEST_KEPT = 32 << 20  # bytes of an allocation that is kept; glibc allows no more
MOST_ARENAS = 2  # of the C library: each keeps freed memory of its own, and Python's lock lets few threads allocate
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

THREADS_END_WITHIN = 5.0  # seconds that threads may run after the node has ended

_leveled: set[str] = set()  # names of loggers whose level the configuration has set


@connect.options
def run(
    invoked: typer.Context,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    source: Annotated[
        str | None, typer.Option(help="How messages are read: consumer, or direct (direct gets, without a consumer).")
    ] = None,
    durable: Annotated[
        str | None, typer.Option(help="Durable consumer; nodes with the same one share the work.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Static group of the stream; the nodes share its partitions.")
    ] = None,
    member: Annotated[str | None, typer.Option(help="Member of the group; reads only its partitions.")] = None,
    node_name: Annotated[str | None, typer.Option(help="Name of this node; default: host and process.")] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Processes that share the work; auto: one for each CPU core.")
    ] = None,
    decoder: Annotated[str | None, typer.Option(help="Decoder: raw, json, message or module:function.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="Partitioning: time, subject:N, field:NAME, decoder or module:function.")
    ] = None,
    block_format: Annotated[
        str | None, typer.Option("--format", help=f"Format of blocks: {', '.join(FORMATS)}, or module:function.")
    ] = None,
    envelope: Annotated[
        str | None, typer.Option(help="Envelope beside the decoded value: columns, nested or none.")
    ] = None,
    compression: Annotated[str | None, typer.Option(help="Compression: none, gzip, snappy or zstd.")] = None,
    max_age: Annotated[
        float | None, typer.Option(parser=seconds, metavar="DURATION", help="Maximum age of an open block.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option(help="Maximum size of a block, messages.")] = None,
    metrics: Annotated[str | None, typer.Option(help="Address for /metrics, /livez and /readyz, HOST:PORT.")] = None,
    metrics_cert: Annotated[Path | None, typer.Option(help="Certificate chain for --metrics, PEM file.")] = None,
    metrics_key: Annotated[Path | None, typer.Option(help="Private key of --metrics-cert, PEM file.")] = None,
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="File with one token per line; requests for /metrics must present one of them.")
    ] = None,
    metrics_allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Allowed host name in requests to --metrics without tokens. Repeatable."),
    ] = None,
) -> None:
    """Capture one or more streams until stopped; sweep and compact while this node is elected."""
    flags = {
        "stream": stream,
        "store": store,
        "source": source,
        "durable": durable,
        "group": group,
        "member": member,
        "node": node_name,
        "workers": workers,
        "decoder": decoder,
        "partition": partition,
        "format": block_format,
        "envelope": envelope,
        "compression": compression,
        "limits.max_age": max_age,
        "limits.max_messages": max_messages,
        **log_flags(invoked),
    }

    def load() -> CaptureConfig:
        return settings.with_pipelines(config, flags, nats)

    if VARIABLE in os.environ:
        run_worker(load, _make_node)
        return
    wanted = load()
    each(wanted)  # checks the streams
    configure_log(wanted.logging)
    guard = None
    if metrics:
        guard = guard_of(
            metrics,
            cert=metrics_cert or "",
            key=metrics_key or "",
            tokens=settings.tokens(metrics_token_file) if metrics_token_file else (),
            hosts=metrics_allow_host or (),
        )
    elif metrics_cert or metrics_key or metrics_token_file or metrics_allow_host:
        raise ConfigError("--metrics-cert, -key, -token-file and -allow-host need --metrics")
    if (count := count_workers(wanted)) > 1:
        supervisor = Supervisor(wanted, count, list_own_command(), load=load, on_reload=_on_reload)
        run_async(_serve_and_supervise(supervisor, metrics, guard) if metrics else supervisor.run())
        return
    node = _make_node(wanted, load)
    _run_to_end(_serve_and_run(node, metrics, guard) if metrics else node.run(), _complain)


def _make_node(wanted: CaptureConfig, load: Callable[[], CaptureConfig], name: str = "") -> Node | Several:
    def on_reload(changed: CaptureConfig) -> None:
        configure_log(changed.logging, name)

    from capture.node.node import Node
    from capture.node.nodes import Several

    make = Several if wanted.streams else Node
    return make(wanted, load=load, on_reload=on_reload)


def _run_to_end(work: Coroutine[Any, Any, None], complain: Callable[[str], object]) -> None:
    """Run a node. `complain` gets its error if a thread that hangs keeps the process from ending."""
    last = _LastResort(complain)
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    _keep_freed_memory()
    try:
        run_async(last.after(work))
    finally:
        last.cancel()


def _keep_freed_memory() -> None:
    """Have the C library keep FREED_BYTES, if it is glibc: see mallopt(3)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, FREED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_M_ARENA_MAX, MOST_ARENAS)


def run_worker(
    load: Callable[[], CaptureConfig],
    make: Callable[[CaptureConfig, Callable[[], CaptureConfig], str], Node | Several],
) -> None:
    """Run as one of several workers: the supervisor gets the error that ends this one, and prints it.

    `make` returns the node, from its configuration, a function that loads that again, and its name.
    """
    from capture.node.worker import Worker

    worker = Worker.take(os.environ)

    def load_mine() -> CaptureConfig:
        return worker.configure(load())

    def read_figures(running: Node | Several) -> list[Family]:
        from capture.node import metrics

        return metrics.read_figures(running)

    async def work(node: Node | Several) -> None:
        async with worker.obey(node, read_figures):
            await node.run()

    with _report_failure(worker):
        wanted = load_mine()
        configure_log(wanted.logging, wanted.node)
        _run_to_end(work(make(wanted, load_mine, wanted.node)), worker.fail)


@contextlib.contextmanager
def _report_failure(worker: Worker) -> Iterator[None]:
    """Report our errors to the supervisor, and exit with status 1."""
    errors = CaptureError, NattyError
    try:
        yield
    except errors as error:
        said = [str(error)]
    except ExceptionGroup as group:  # raised by one of our task groups
        if group.split(errors)[1] is not None:
            raise
        said = sentences(group)
    else:
        return
    worker.fail("; ".join(dict.fromkeys(said)))
    raise typer.Exit(EXIT_ERROR)


def list_own_command() -> list[str]:
    """Return the command that started this process: a worker is the same command, with a variable that makes it one."""
    ours = sys.argv[1:]
    if sys.orig_argv[-len(ours) :] == ours:
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", "capture", *ours]


def log_flags(invoked: typer.Context) -> dict[str, Any]:
    """Return the flags before the command, as settings."""
    given = invoked.find_root().params
    return {"logging.level": given["log_level"], "logging.format": given["log_format"]}


def _on_reload(changed: CaptureConfig) -> None:
    configure_log(changed.logging)


def configure_log(wanted: Logging, node: str = "") -> None:
    """Apply these log settings. With the name of a `node`, each line of JSON has it."""
    for name in _leveled:
        logging.getLogger(name).setLevel(logging.NOTSET)
    configure_logging(LogLevel(wanted.level), LogFormat(wanted.format), {"node": node} if node else {})
    life.setLevel(logging.INFO)  # two lines for each run of a node, whatever the level
    for name, level in wanted.loggers.items():
        logging.getLogger(name).setLevel(level.upper())
    _leveled.clear()
    _leveled.update(wanted.loggers)


class _LastResort:
    """Ends the process if a thread that hangs in the store keeps it alive: nothing else ends such a thread."""

    def __init__(self, complain: Callable[[str], object]) -> None:
        self._status, self._sentence, self._complain = 0, "", complain
        self._timer = threading.Timer(THREADS_END_WITHIN, self._end)
        self._timer.daemon = True

    async def after(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work. After it the process has THREADS_END_WITHIN seconds until `cancel`, or until a signal."""
        try:
            await work
        except BaseException as error:
            self._status = EXIT_ERROR
            if isinstance(error, CaptureError | NattyError):
                self._sentence = str(error)
            raise
        finally:
            for number in STOPS:
                signal.signal(number, signal.SIG_DFL)
            self._timer.start()

    def cancel(self) -> None:
        """Let the process end normally."""
        self._timer.cancel()

    def _end(self) -> None:
        if self._sentence:
            self._complain(self._sentence)
        os._exit(self._status)


def _complain(sentence: str) -> None:
    sys.stderr.write(complaint("capture", sentence) + "\n")
    sys.stderr.flush()


async def _serve_and_run(node: Node | Several, address: str, guard: Guard | None) -> None:
    with _explain_import():
        from capture.node.metrics import serve
    async with serve(node, address, guard):
        await node.run()


async def _serve_and_supervise(supervisor: Supervisor, address: str, guard: Guard | None) -> None:
    with _explain_import():
        from capture.node.worker_metrics import serve_workers
    async with serve_workers(supervisor, address, guard):
        await supervisor.run()


@contextlib.contextmanager
def _explain_import() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"--metrics needs {error.name}; {how_to_install('metrics')}") from error

"""`capture run`: captures streams until it is stopped."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from capture.archive.stored_formats import FORMATS
from capture.cli import settings
from capture.config.settings import CaptureConfig, Logging
from capture.config.streams import each
from capture.errors import CaptureError, ConfigError
from capture.node.node import Node, life
from capture.node.nodes import Several
from capture.node.shutdown import STOPS
from natty import NattyError
from natty.cli import connect
from natty.cli.ask import seconds
from natty.cli.run import EXIT_ERROR, LogFormat, LogLevel, complaint, configure_logging, run_async
from natty.metrics.pages import Guard, guard_of

COLLECT_AFTER = 500_000, 50, 100
"""When the collector of cycles runs (`gc.set_threshold`): it visits all messages, which are many and in no cycle."""

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
    durable: Annotated[
        str | None, typer.Option(help="Durable consumer; nodes with the same one share the work.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Static group of the stream; the nodes share its partitions.")
    ] = None,
    member: Annotated[str | None, typer.Option(help="Member of the group; reads only its partitions.")] = None,
    node_name: Annotated[str | None, typer.Option(help="Name of this node; default: host and process.")] = None,
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
        "durable": durable,
        "group": group,
        "member": member,
        "node": node_name,
        "decoder": decoder,
        "partition": partition,
        "format": block_format,
        "envelope": envelope,
        "compression": compression,
        "limits.max_age": max_age,
        "limits.max_messages": max_messages,
        **_log_flags(invoked),
    }

    def load() -> CaptureConfig:
        return settings.with_pipelines(config, flags, nats)

    wanted = load()
    each(wanted)  # checks the streams
    _configure_log(wanted.logging)

    def on_reload(changed: CaptureConfig) -> None:
        _configure_log(changed.logging)

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
    node: Node | Several
    if wanted.streams:
        node = Several(wanted, load=load, on_reload=on_reload)
    else:
        node = Node(wanted, load=load, on_reload=on_reload)
    last = _LastResort()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        run_async(last.after(_serve_and_run(node, metrics, guard) if metrics else node.run()))
    finally:
        last.cancel()


def _log_flags(invoked: typer.Context) -> dict[str, Any]:
    """Return the flags before the command, as settings."""
    given = invoked.find_root().params
    return {"logging.level": given["log_level"], "logging.format": given["log_format"]}


def _configure_log(wanted: Logging) -> None:
    """Apply these log settings."""
    for name in _leveled:
        logging.getLogger(name).setLevel(logging.NOTSET)
    configure_logging(LogLevel(wanted.level), LogFormat(wanted.format))
    life.setLevel(logging.NOTSET if wanted.level == "error" else logging.INFO)  # two lines for each run of a node
    for name, level in wanted.loggers.items():
        logging.getLogger(name).setLevel(level.upper())
    _leveled.clear()
    _leveled.update(wanted.loggers)


class _LastResort:
    """Ends the process if a thread that hangs in the store keeps it alive: nothing else ends such a thread."""

    def __init__(self) -> None:
        self._status, self._message = 0, ""
        self._timer = threading.Timer(THREADS_END_WITHIN, self._end)
        self._timer.daemon = True

    async def after(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work. After it the process has THREADS_END_WITHIN seconds until `cancel`, or until a signal."""
        try:
            await work
        except BaseException as error:
            self._status = EXIT_ERROR
            if isinstance(error, CaptureError | NattyError):
                self._message = complaint("capture", str(error)) + "\n"
            raise
        finally:
            for number in STOPS:
                signal.signal(number, signal.SIG_DFL)
            self._timer.start()

    def cancel(self) -> None:
        """Let the process end normally."""
        self._timer.cancel()

    def _end(self) -> None:
        sys.stderr.write(self._message)
        sys.stderr.flush()
        os._exit(self._status)


async def _serve_and_run(node: Node | Several, address: str, guard: Guard | None) -> None:
    try:
        from capture.node.metrics import serve
    except ImportError as error:
        raise ConfigError(f'--metrics needs {error.name}; run: pip install "natty-nats[metrics]"') from error
    async with serve(node, address, guard):
        await node.run()

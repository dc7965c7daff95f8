from __future__ import annotations

from typing import Annotated, Any

import typer

from capture.cli import settings
from capture.errors import ConfigError
from capture.node import Node
from natty.cli import connect
from natty.cli.run import run_async


@connect.options
def run(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    durable: Annotated[
        str | None, typer.Option(help="The durable consumer; nodes that share it share the work.")
    ] = None,
    node_name: Annotated[str | None, typer.Option(help="This node's name; host and process by default.")] = None,
    decoder: Annotated[str | None, typer.Option(help="raw, json, message or module:function.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="time, subject:N, field:NAME, decoder or module:function.")
    ] = None,
    block_format: Annotated[str | None, typer.Option("--format", help="parquet, ndjson, csv or raw.")] = None,
    compression: Annotated[str | None, typer.Option(help="none, gzip, snappy or zstd.")] = None,
    max_age: Annotated[float | None, typer.Option(help="Seconds after which a block is sealed.")] = None,
    max_messages: Annotated[int | None, typer.Option(help="Messages after which a block is sealed.")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Serve /metrics, /livez and /readyz here, HOST:PORT; needs the extra metrics.")
    ] = None,
) -> None:
    """Capture a stream until stopped; sweep, and compact, while this node is elected to it."""
    flags = {
        "stream": stream,
        "store": store,
        "durable": durable,
        "node": node_name,
        "decoder": decoder,
        "partition": partition,
        "format": block_format,
        "compression": compression,
        "limits.max_age": max_age,
        "limits.max_messages": max_messages,
    }
    node = Node(settings.archive(config, flags, nats))
    run_async(_served(node, metrics) if metrics else node.run())


async def _served(node: Node, address: str) -> None:
    try:
        from capture.telemetry import serve
    except ImportError as error:
        raise ConfigError('--metrics needs prometheus-client; run: pip install "natty-nats[metrics]"') from error
    async with serve(node, address):
        await node.run()

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich import print_json
from rich.console import Console
from rich.table import Table

from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async


@connect.options
def doctor(
    *,
    nats: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Connect and say what is there: server, TLS, JetStream and its limits, round trip."""
    found = run_async(_examine(nats))
    if as_json:
        print_json(data=found)
        return
    table = Table(show_header=False, box=None)
    for name, value in found.items():
        table.add_row(f"{name}:", str(value))
    Console().print(table)


async def _examine(settings: dict[str, Any]) -> dict[str, Any]:
    async with Natty(**settings) as natty:
        began = time.perf_counter()
        await natty.connection.flush()
        round_trip = time.perf_counter() - began
        account = await natty.jetstream.request("INFO")
        info = natty.connection.server_info
        return {
            "server": info.get("server_name", ""),
            "version": info.get("version", ""),
            "cluster": info.get("cluster", "none"),
            "tls": "required by us, in use" if natty.config.tls_required else "not in use",
            "round trip, ms": round(1000 * round_trip, 2),
            "jetstream streams": account["streams"],
            "jetstream storage, bytes": account["storage"],
            "largest message, bytes": info.get("max_payload", 0),
        }

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import print_json

from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async
from natty.leader import BUCKET

app = typer.Typer(help="Elections.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Elections."""


@app.command()
@connect.options
def show(
    *,
    nats: dict[str, Any],
    name: Annotated[str, typer.Argument(help="The election's name.")],
    bucket: Annotated[str, typer.Option(help="Its bucket.")] = BUCKET,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show who leads, as last written: a hint."""
    leader = run_async(_leader(nats, name, bucket))
    if as_json:
        print_json(data={"election": name, "leader": leader})
    else:
        print(f"{leader} leads {name}" if leader else f"nobody leads {name}")


async def _leader(settings: dict[str, Any], name: str, bucket: str) -> str | None:
    async with Natty(**settings) as natty:
        return await natty.get_leader(name, bucket=bucket)

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capture.cli.demo.run import DemoOptions, run_demo
from natty.cli.run import run_async


def demo(
    rows: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many flights; all 336 776 by default.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files and say where they are.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where to put them; a temporary folder by default.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65533, help="The first server's port; a free one by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run the main job on real flights: a TLS cluster, two nodes, a killed leader, Spark, and the proof."""
    ok = run_async(run_demo(DemoOptions(rows=rows, keep=keep, folder=folder, port=port, as_json=as_json)))
    raise typer.Exit(0 if ok else 1)

"""`capture cat`: prints the messages of a stream from its archive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capture.archive.envelope_columns import NEEDED
from capture.archive.sequences import Sequences
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.reading.options import ReadOptions, ReadSettings
from natty import Natty
from natty.cli import connect
from natty.cli.ask import seconds
from natty.cli.run import run_async
from natty.cli.terminal import write
from natty.config.units import parse_time, show_time

if TYPE_CHECKING:  # pyarrow takes longer to import than the completion of a word may take
    import pyarrow as pa


class Form(StrEnum):
    """The parts of a message that are printed."""

    JSON = "json"
    PAYLOAD = "payload"
    RAW = "raw"


@dataclass(frozen=True)
class _Printed:
    columns: Sequence[str]
    of: Callable[[pa.RecordBatch], bytes]


def _json_lines(batch: pa.RecordBatch) -> bytes:
    from capture.formats.envelope import to_records
    from capture.formats.ndjson import lines

    return lines(to_records(batch))


def _payloads(batch: pa.RecordBatch) -> list[bytes]:
    payloads: list[bytes] = batch.column("payload").to_pylist()
    return payloads


_FORMS = {
    Form.JSON: _Printed(NEEDED, _json_lines),
    Form.PAYLOAD: _Printed(["payload"], lambda batch: b"".join(one + b"\n" for one in _payloads(batch))),
    Form.RAW: _Printed(["payload"], lambda batch: b"".join(_payloads(batch))),
}


def moment(text: str) -> str:
    """Return a time with its zone, or a duration before now (90s, 1h30m, 7d), as RFC 3339 to the nanosecond."""
    try:
        with contextlib.suppress(typer.BadParameter):
            return show_time(time.time_ns() - round(seconds(text) * 1e9))
        return show_time(parse_time(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time with its zone and at most nine decimals of a second (2026-11-21T06:00:00Z), and"
            " not a duration (1h30m)"
        ) from None


Moment = Annotated[
    str | None,
    typer.Option(parser=moment, metavar="TIME", help="Time with its zone, or duration before now: 1h30m, 7d."),
]


@connect.options
def cat(
    *,
    nats: dict[str, Any],
    archive: Annotated[
        str | None, typer.Argument(help="Folder or URL of the archive; default: --store, or the configuration's store.")
    ] = None,
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="Only this subject; may contain the wildcards * and >. Repeatable.")
    ] = None,
    since: Moment = None,
    until: Moment = None,
    from_: Annotated[int, typer.Option("--from", min=1, help="First sequence.")] = ReadOptions.start_sequence,
    to: Annotated[int | None, typer.Option("--to", min=1, help="Last sequence.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Continue with the messages in the stream.")] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue with new messages as they are published, until interrupted."),
    ] = False,
    skip_gaps: Annotated[
        bool, typer.Option("--skip-gaps", help="Continue after messages that were removed before they were captured.")
    ] = False,
    public_key: settings.PublicKey = None,
    encrypted_only: settings.EncryptedOnly = False,
    form: Annotated[
        Form, typer.Option("--format", help="Output: a JSON line or a payload line per message, or raw payloads.")
    ] = Form.JSON,
) -> None:
    """Print every message of a stream once, in order: from its archive and, with --live or --follow, from the stream.

    Needs a server only with --live or --follow.
    """
    if to is not None and to < from_:
        raise typer.BadParameter(f"--from {from_} is after --to {to}: no message is in this range")
    if since and until and parse_time(until) <= parse_time(since):
        raise typer.BadParameter(f"--since {since} is not before --until {until}: no message is in this range")
    flags = {"stream": stream, "store": archive or store, **settings.checks(public_key, encrypted_only)}
    wanted = settings.archive(config, flags, nats, needs=("store",))
    options = ReadSettings(
        stream=wanted.stream,
        start_sequence=from_,
        end_sequence=to,
        since=since,
        until=until,
        subjects=subject or (),
        gaps="skip" if skip_gaps else "raise",
        on_gap=_report_gap,
    )
    try:
        run_async(_print(wanted, options, _FORMS[form], live or follow, follow))
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _print(config: CaptureConfig, options: ReadSettings, printed: _Printed, live: bool, follow: bool) -> None:
    from capture.reading.read import read_batches

    async with contextlib.AsyncExitStack() as stack:
        if live:
            options["natty"] = await stack.enter_async_context(Natty(**config.nats))
            options["follow"] = follow
        batches = read_batches(config, columns=printed.columns, **options)
        async with aclosing(batches):
            async for batch in batches:
                await asyncio.to_thread(write, printed.of(batch))


def _report_gap(missing: Sequences) -> None:
    print(f"capture: neither in the archive nor in the stream: {missing.describe()}", file=sys.stderr)

"""`natty pub` and `natty request`: publish messages, send requests."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from natty import Natty
from natty.cli import connect
from natty.cli.ask import body_of, headers_of, lines_of_stdin, moment, seconds, usage
from natty.cli.schedule import show_waiting
from natty.cli.show import fields_of
from natty.cli.tables import Json
from natty.cli.terminal import json_text, say, write
from natty.config.units import write_count
from natty.names import check_subject
from natty.publishing.timing import Timing
from natty.wire.message import Headers, encode_headers

_WRITE_AHEAD = 256  # messages between two updates of the socket and the progress

Subject = Annotated[str, typer.Argument(help="The subject.")]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="Header, 'Name: value'. May be given several times.")
]


@connect.options
def pub(
    *,
    nats: dict[str, Any],
    subject: Subject,
    body: Annotated[
        str | None,
        typer.Argument(help="The message; - publishes each line of standard input. Default: a pipe or file there."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of times to publish it.")] = 1,
    header: Header = None,
    msg_id: Annotated[
        str, typer.Option("--msg-id", help="Message id; a stream stores repeated ones only once. Implies -J.")
    ] = "",
    jetstream: Annotated[
        bool, typer.Option("--jetstream", "-J", help="Wait until a stream has stored it, and print where.")
    ] = False,
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Have the server publish it at this time: 2026-11-23T18:00Z."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Have the server publish it after this time: 5m.")
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Publish each line of standard input.")] = False,
    as_json: Json = False,
) -> None:
    """Publish a message; with --jetstream, wait until a stream has stored it; with --at or --after, later."""
    from_stdin = stdin or body == "-"
    for flag, value in (("--msg-id", msg_id), ("--at", at), ("--after", after)):
        if value and (count > 1 or from_stdin):
            raise typer.BadParameter("it is for a single message", param_hint=flag)
    if from_stdin and count > 1:
        raise typer.BadParameter("each line of standard input is published once", param_hint="--count")
    headers = headers_of(header or [])
    check_subject(subject)
    if at and after:
        raise typer.BadParameter("--at and --after exclude each other")
    if at or after:
        usage(lambda: Timing(at=at, after=after))
    data = b"" if from_stdin else body_of(body)
    if at or after:
        ack = connect.call(
            nats,
            lambda natty: natty.publish(subject, data, headers=headers, msg_id=msg_id, at=at, after=after),
        )
        show_waiting(ack, subject, as_json)
        return
    headers |= {"Nats-Msg-Id": msg_id} if msg_id else {}
    bodies = lines_of_stdin() if from_stdin else _repeat(data, count)
    total = None if from_stdin else count
    stored = jetstream or bool(msg_id)
    if stored and total == 1:
        done = connect.call(nats, lambda natty: _store_one(natty, subject, data, headers))
    else:
        publish = _store if stored else _send
        done = connect.call(nats, lambda natty: publish(natty, subject, headers, bodies, total))
    print(json.dumps(done) if as_json else _sentence(done))


@connect.options
def request(
    *,
    nats: dict[str, Any],
    subject: Subject,
    body: Annotated[
        str | None, typer.Argument(help="The request. Default: standard input, if it is a pipe or a file.")
    ] = None,
    header: Header = None,
    timeout: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Time to wait for the answer.")
    ] = "5s",  # type: ignore[assignment] # typer parses defaults, too
    as_json: Json = False,
) -> None:
    """Send a request and print the payload of the answer; with --json also its headers and its duration."""
    headers = headers_of(header or [])
    check_subject(subject)
    data = body_of(body)
    answer = connect.call(nats, lambda natty: _request(natty, subject, data, headers, timeout))
    if as_json:
        say(json_text(answer[1]))
    else:
        write(answer[0] + b"\n")


async def _repeat(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _store_one(natty: Natty, subject: str, body: bytes, headers: Headers) -> dict[str, Any]:
    await natty.jetstream.stream_of(subject)  # so that a missing stream is reported at once
    ack = await natty.jetstream.publish(subject, body, headers=headers)
    return {"subject": subject, "messages": 1, "stream": ack.stream, "sequence": ack.seq, "duplicate": ack.duplicate}


async def _store(
    natty: Natty, subject: str, headers: Headers, bodies: AsyncIterator[bytes], total: int | None
) -> dict[str, Any]:
    sent, single = 0, {name: value if isinstance(value, str) else value[-1] for name, value in headers.items()}
    stream = await natty.jetstream.stream_of(subject)
    with _progress() as progress:
        task = progress.add_task("published", total=total)
        async with natty.publisher(stream) as publisher:
            async for body in bodies:
                await publisher.publish(subject, body, headers=single)
                if (sent := sent + 1) % _WRITE_AHEAD == 0:
                    progress.update(task, completed=sent)
    return {"subject": subject, "messages": publisher.stored, "stream": stream}


async def _send(
    natty: Natty, subject: str, headers: Headers, bodies: AsyncIterator[bytes], total: int | None
) -> dict[str, Any]:
    block, sent = encode_headers(headers) if headers else b"", 0
    connection = natty.connection
    _, refused = connection.expect_answer(subject.encode())  # only a refusal by the server completes it
    try:
        with _progress() as progress:
            task = progress.add_task("published", total=total)
            async for body in bodies:
                connection.send(subject, body, headers=block)
                if (sent := sent + 1) % _WRITE_AHEAD == 0:
                    progress.update(task, completed=sent)
                    await connection.drain()
        await connection.flush()
        if refused.done():
            refused.result()
    finally:
        refused.cancel()
    return {"subject": subject, "messages": sent}


async def _request(
    natty: Natty, subject: str, body: bytes, headers: Headers, timeout: float
) -> tuple[bytes, dict[str, Any]]:
    block = encode_headers(headers) if headers else b""
    began = time.perf_counter()
    raw = await natty.connection.request(subject, body, headers=block, timeout=timeout)
    took = time.perf_counter() - began
    return raw[3], fields_of(raw) | {"subject": subject, "seconds": round(took, 6)}


def _progress() -> Progress:
    """Return a progress display on standard error, only on a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _sentence(done: dict[str, Any]) -> str:
    if "sequence" in done:
        again = ", a duplicate: it was already stored" if done["duplicate"] else ""
        return f"stored in {done['stream']} at sequence {done['sequence']}{again}"
    verb = f"stored in {done['stream']}" if "stream" in done else "published"
    return f"{write_count(done['messages'], 'message')} {verb} on {done['subject']}"

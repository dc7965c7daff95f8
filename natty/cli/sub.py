"""`natty sub`: prints the messages of a subject or a stream."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.printer import Printer
from natty.cli.show import Form, form_of, show_message
from natty.consuming.messaging import subscribe
from natty.errors import BadSubjectError, StreamNotFoundError
from natty.names import check_name
from natty.pulling.ordered import Began, Ordered, OrderedOptions, Vanished
from natty.wire.message import Batch

_AT_ONCE = 500  # messages of a stream that are requested together


@connect.options
def sub(
    *,
    nats: dict[str, Any],
    subject: Annotated[str, typer.Argument(help="The subject; wildcards * and > are allowed.")],
    count: Annotated[int | None, typer.Option(min=1, help="Number of messages, then exit.")] = None,
    queue: Annotated[str, typer.Option(help="Share the messages with the other members of this queue group.")] = "",
    stream: Annotated[
        str,
        typer.Option(help="Read this stream from its beginning, then new messages.", autocompletion=completion.streams),
    ] = "",
    new: Annotated[bool, typer.Option("--new", help="With --stream, only new messages.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print only payloads.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print messages as they arrive, until interrupted; with --stream also those that the stream has stored."""
    if stream and queue:
        raise typer.BadParameter("--stream excludes --queue; share work with a durable consumer", param_hint="--queue")
    if any(character.isspace() for character in subject) or not all(subject.split(".")):
        raise BadSubjectError(f"subject {subject!r} is empty, or contains a blank or an empty token")
    form = form_of(as_json=as_json, raw=raw)
    if stream:
        check_name("stream", stream)
        connect.call(nats, lambda natty: _read(natty, stream, subject, form, count, new=new))
    else:
        connect.call(nats, lambda natty: _listen(natty, subject, queue, form, count))


async def _listen(natty: Natty, subject: str, queue: str, form: Form, count: int | None) -> None:
    async with Printer(form, count) as printer:

        def take(batch: Batch) -> None:
            if not printer.take(batch.raw):
                subscription.close()

        subscription = await subscribe(natty.connection, subject, take, queue=queue)
        print(f"subscribed to {subject}", file=sys.stderr, flush=True)
        await printer.wait()


async def _read(natty: Natty, stream: str, subject: str, form: Form, count: int | None, *, new: bool) -> None:
    most = min(count or _AT_ONCE, _AT_ONCE)
    options = OrderedOptions(filters=(subject,), start="new" if new else "first", max_messages=most)
    shown = 0
    async with aclosing(Ordered(natty.jetstream, stream, options).__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, Began):
                print(f"reading {subject} of stream {stream}", file=sys.stderr, flush=True)
            elif isinstance(step, Vanished):
                raise StreamNotFoundError(f"stream {stream} was deleted while it was read", code=404)
            for message in step.raw if isinstance(step, Batch) else ():
                shown += 1
                show_message(shown, message, form, stored=True)
                if shown == count:
                    return

"""`natty sub`: prints the messages of a subject or a stream."""

from __future__ import annotations

import secrets
import sys
from contextlib import aclosing
from typing import Annotated, Any

import typer

from natty import Natty, Pull, PullOptions
from natty.cli import connect
from natty.cli.printer import Printer
from natty.cli.run import run_async
from natty.cli.show import Form, form_of, show_message
from natty.config.units import NANOSECONDS
from natty.errors import BadSubjectError
from natty.names import check_name
from natty.wire.message import RawMessage

_IDLE = 60.0  # seconds after which the server deletes the consumer of a stream, if we could not delete it


@connect.options
def sub(
    *,
    nats: dict[str, Any],
    subject: Annotated[str, typer.Argument(help="The subject; wildcards * and > are allowed.")],
    count: Annotated[int | None, typer.Option(min=1, help="Number of messages, then exit.")] = None,
    queue: Annotated[str, typer.Option(help="Share the messages with the other members of this queue group.")] = "",
    stream: Annotated[str, typer.Option(help="Read this stream from its beginning, then new messages.")] = "",
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
        run_async(_read(nats, check_name("stream", stream), subject, form, count, new=new))
    else:
        run_async(_listen(nats, subject, queue, form, count))


async def _listen(settings: dict[str, Any], subject: str, queue: str, form: Form, count: int | None) -> None:
    async with Natty(**settings) as natty, Printer(form, count) as printer:

        def take(messages: list[RawMessage]) -> None:
            if not printer.take(messages):
                subscription.close()

        subscription = natty.connection.subscribe(subject, take, queue=queue)
        await natty.connection.flush()
        print(f"subscribed to {subject}", file=sys.stderr, flush=True)
        await printer.wait()


async def _read(
    settings: dict[str, Any], stream: str, subject: str, form: Form, count: int | None, *, new: bool
) -> None:
    name, shown, position = f"natty_sub_{secrets.token_hex(6)}", 0, 0
    async with Natty(**settings) as natty:

        async def create() -> None:
            """Create our consumer, which continues after the last printed message: a lost consumer is created again."""
            start: dict[str, Any] = {"deliver_policy": "new" if new else "all"}
            if position:
                start = {"deliver_policy": "by_start_sequence", "opt_start_seq": position + 1}
            await natty.jetstream.request(
                f"CONSUMER.CREATE.{stream}.{name}",
                {
                    "stream_name": stream,
                    "action": "create",
                    "config": start
                    | {
                        "name": name,
                        "filter_subject": subject,
                        "ack_policy": "none",
                        "inactive_threshold": round(_IDLE * NANOSECONDS),
                        "mem_storage": True,
                        "num_replicas": 1,
                    },
                },
            )

        await create()
        try:
            print(f"reading {subject} of stream {stream}", file=sys.stderr, flush=True)
            pull = Pull(natty.jetstream, stream, name, PullOptions(max_messages=count or 500), recreate=create)
            async with aclosing(pull.__aiter__()) as batches:
                async for batch in batches:
                    for message in batch.raw:
                        shown += 1
                        show_message(shown, message, form, stored=True)
                        if shown == count:
                            return
                    position = batch.sequences[-1] if len(batch) else position
                    pull.finish(len(batch))
        finally:
            await natty.delete_consumer(stream, name)

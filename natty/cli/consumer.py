"""`natty consumer`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async
from natty.cli.show import Form, form_of, show_message
from natty.errors import RequestTimeoutError
from natty.stream import check_name

app = typer.Typer(help="Consumers.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Consumers."""


@app.command("next")
@connect.options
def next_messages(
    *,
    nats: dict[str, Any],
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    consumer: Annotated[str, typer.Argument(help="The durable consumer's name.")],
    count: Annotated[int, typer.Option(min=1, help="How many messages.")] = 1,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge them; else they come again after ack_wait.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the next message.")] = 5.0,
    raw: Annotated[bool, typer.Option("--raw", help="Print payloads and nothing else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Take the next messages of a durable consumer and print them."""
    form = form_of(as_json=as_json, raw=raw)
    names = check_name("stream", stream), check_name("consumer", consumer)
    run_async(_next(nats, *names, count, form, ack=ack, timeout=timeout))


async def _next(
    settings: dict[str, Any], stream: str, consumer: str, count: int, form: Form, *, ack: bool, timeout: float
) -> None:
    """Print first, then acknowledge: a message whose printing failed comes again."""
    shown = 0
    async with Natty(**settings) as natty:
        await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}")  # says so at once if it is missing
        pull = natty.pull(stream, consumer, max_messages=count)
        async with aclosing(pull.__aiter__()) as batches:
            while shown < count:
                try:
                    async with asyncio.timeout(timeout):
                        batch = await anext(batches)
                except TimeoutError:
                    raise RequestTimeoutError(
                        f"no message came from consumer {consumer} of stream {stream} within {timeout:g} s;"
                        f" {shown} of {count} were printed"
                    ) from None
                for raw in batch.raw:
                    shown += 1
                    show_message(shown, raw, form, stored=True)
                if ack:
                    pull.ack(batch.replies)

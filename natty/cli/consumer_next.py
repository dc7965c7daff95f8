"""`natty consumer next`: takes, prints and answers messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from natty import Message, Natty
from natty.cli import completion, connect
from natty.cli.ask import seconds
from natty.cli.show import Form, form_of, show_message
from natty.errors import RequestTimeoutError
from natty.names import check_name
from natty.pulling.take import take, why_silent
from natty.streams.nearest import naming_nearest

Answer = Callable[[Message], object]


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """Which messages to take, and how to answer them."""

    stream: str
    consumer: str
    count: int
    timeout: float
    answer: Answer | None
    wait: float  # maximum seconds between printing and answering
    form: Form


@connect.options
def next_messages(
    *,
    nats: dict[str, Any],
    stream: Annotated[str, typer.Argument(help="The stream's name.", autocompletion=completion.streams)],
    consumer: Annotated[str, typer.Argument(help="The durable consumer's name.", autocompletion=completion.consumers)],
    count: Annotated[int, typer.Option(min=1, help="Number of messages.")] = 1,
    ack: Annotated[
        bool | None,
        typer.Option(
            "--ack/--no-ack",
            help="Acknowledge the messages (default), or leave them to be delivered again after ack_wait.",
        ),
    ] = None,
    nak: Annotated[bool, typer.Option("--nak", help="Negatively acknowledge them: they are delivered again.")] = False,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="DURATION", help="With --nak, delay before they are delivered again, such as 30s."
        ),
    ] = None,
    term: Annotated[bool, typer.Option("--term", help="Terminate them: they are never delivered again.")] = False,
    reason: Annotated[str, typer.Option(help="With --term, reason for the server's advisory.")] = "",
    in_progress: Annotated[
        bool, typer.Option("--in-progress", help="Report that work is in progress: ack_wait restarts.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="Answer each message after a random time up to this."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Time to wait for the next message.")
    ] = "5s",  # type: ignore[assignment] # typer parses defaults, too
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print only payloads.")] = False,
    as_json: Annotated[bool, typer.Option("--json", "-j", help="Print one JSON object per line.")] = False,
) -> None:
    """Take the next messages of a durable consumer, print them, then acknowledge them or answer otherwise.

    It takes one round trip.
    """
    wish = _Wish(
        stream=check_name("stream", stream),
        consumer=check_name("consumer", consumer),
        count=count,
        timeout=timeout,
        answer=_answer(ack=ack, nak=nak, delay=delay, term=term, reason=reason, in_progress=in_progress),
        wait=wait or 0.0,
        form=form_of(as_json=as_json, raw=raw),
    )
    connect.call(nats, lambda natty: _next(natty, wish))


def _answer(
    *, ack: bool | None, nak: bool, delay: float | None, term: bool, reason: str, in_progress: bool
) -> Answer | None:
    """Return the answer to each message. Raises a usage error for two answers, or for an incomplete one."""
    given = {"--ack": ack, "--nak": nak, "--term": term, "--in-progress": in_progress}
    if len(named := [name for name, wanted in given.items() if wanted]) > 1:
        raise typer.BadParameter(f"{' and '.join(named)} contradict each other: give one of them")
    if delay is not None and not nak:
        raise typer.BadParameter("--delay works only with --nak: give --nak, too", param_hint="--delay")
    if reason and not term:
        raise typer.BadParameter("--reason works only with --term: give --term, too", param_hint="--reason")
    if nak:
        return partial(Message.nak, delay=delay or 0.0)
    if term:
        return partial(Message.term, reason=reason)
    if in_progress:
        return Message.in_progress
    return None if ack is False else Message.ack


async def _next(natty: Natty, wish: _Wish) -> None:
    """Print first, then answer: a message that could not be printed is delivered again."""
    shown = 0
    taken = take(natty.jetstream, wish.stream, wish.consumer, wish.count, wait=wish.timeout)
    async with naming_nearest(natty.jetstream, wish.stream, wish.consumer), aclosing(taken):
        async for batch in taken:
            for message in batch:
                shown += 1
                show_message(shown, message.raw, wish.form, stored=True)
                if wish.wait:
                    await asyncio.sleep(random.uniform(0, wish.wait))
                if wish.answer:
                    wish.answer(message)
    if shown < wish.count:
        raise RequestTimeoutError(
            f"consumer {wish.consumer} of stream {wish.stream} delivered no message within {wish.timeout:g} s;"
            f" printed {shown} of {wish.count}"
            f"{await why_silent(natty.jetstream, wish.stream, wish.consumer)}"
        )

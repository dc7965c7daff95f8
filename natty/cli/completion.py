"""Completion of names in the shell: TAB asks the server, with the connection options before the cursor."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import Any

import typer

from natty import Natty
from natty.cli import connect
from natty.streams.listing import consumer_names, stream_names

ANSWER_WITHIN = 1.5  # seconds

PLAIN = re.compile(r"[\w./=@+-]+", re.ASCII)
"""Names that no shell interprets. Others are not offered: whoever may name a consumer could have a shell run it."""

Ask = Callable[[Natty, typer.Context], Awaitable[Iterable[str]]]
"""Returns the names that exist. The context's `params` are the words before the cursor."""


def complete(ask: Ask) -> Callable[[typer.Context, str], list[str]]:
    """Return the `autocompletion` of a parameter: the names that `ask` returns for a connection.

    No names, and nothing on standard error, if there is no answer within ANSWER_WITHIN.
    """

    def names(context: typer.Context, incomplete: str) -> list[str]:
        return find(lambda: connect.call(connect.given(context.params), lambda natty: ask(natty, context)))

    return names


def find(names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the PLAIN names; none if that fails. If it takes too long, the process ends.

    A process that completes a word does nothing else, and could otherwise wait for a thread that resolves an address.
    Typer offers those that begin with the word.
    """
    with redirect_stderr(StringIO()), suppress(Exception):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, ANSWER_WITHIN)
        try:
            return [name for name in names() if PLAIN.fullmatch(name)]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return []


async def _streams(natty: Natty, context: typer.Context) -> Iterable[str]:
    return await stream_names(natty.jetstream)


async def _consumers(natty: Natty, context: typer.Context) -> Iterable[str]:
    return await consumer_names(natty.jetstream, context.params["stream"])


async def _buckets(natty: Natty, context: typer.Context) -> Iterable[str]:
    from natty.kv import list_buckets

    return await list_buckets(natty.jetstream)


async def _keys(natty: Natty, context: typer.Context) -> Iterable[str]:
    return await natty.bucket(context.params["bucket"]).keys()


async def _groups(natty: Natty, context: typer.Context) -> Iterable[str]:
    from natty.groups.admin import list_groups

    kind: Any = context.command_path.split()[2]  # natty group static …
    return await list_groups(natty.jetstream, kind, context.params["stream"])


async def _elections(natty: Natty, context: typer.Context) -> Iterable[str]:
    from natty.elections import BUCKET, elections

    return await elections(natty.jetstream, context.params.get("bucket") or BUCKET)


async def _schedules(natty: Natty, context: typer.Context) -> Iterable[str]:
    return [one.name async for one in natty.scheduler.list(context.params["stream"])]


async def _templates(natty: Natty, context: typer.Context) -> Iterable[str]:
    return [one.name for one in await natty.stream_templates().ls()]


streams, consumers, schedules = complete(_streams), complete(_consumers), complete(_schedules)
buckets, keys, elections = complete(_buckets), complete(_keys), complete(_elections)
groups, templates = complete(_groups), complete(_templates)

"""`natty schedule`: makes, lists, shows and removes what the server publishes later."""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import typer

from natty import Natty, PubAck, Schedule
from natty.cli import completion, connect
from natty.cli.ask import Force, body_of, confirm, headers_of, moment, usage
from natty.cli.choose import StreamName, stream_of
from natty.cli.show import content_fields
from natty.cli.tables import Json, print_document, print_table
from natty.cli.terminal import say, write
from natty.config.units import write_count
from natty.names import check_pattern, check_subject
from natty.streams.schedules import ScheduleOptions, subject_of

app = typer.Typer(help="Messages that the server publishes later.", no_args_is_help=True)

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", autocompletion=completion.streams)]
Name = Annotated[
    str, typer.Argument(help="The schedule's name, or the subject that holds it.", autocompletion=completion.schedules)
]


@app.command()
@connect.options
def ls(
    *,
    nats: dict[str, Any],
    stream: StreamName = None,
    subject: Annotated[
        str, typer.Option("--subject", help="Subjects that hold the schedules, a pattern. Default: schedules.STREAM.>")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the messages of a stream that wait to be published."""
    stream = stream_of(nats, stream)
    pattern = check_pattern(subject) if subject else ""
    found = connect.call(nats, lambda natty: _ls(natty, stream, pattern), stream=stream)
    if as_json:
        print_document([_fields(one) for one in found])
    elif found:
        rows = [(one.name, one.target, one.timing, one.source or f"{len(one.data):,} bytes") for one in found]
        print_table(("name", "target", "publishes", "content"), rows)
    else:
        where = f" on {pattern}" if pattern else ""
        say(f"nothing waits in stream {stream}{where}")


async def _ls(natty: Natty, stream: str, pattern: str) -> list[Schedule]:
    """Return the schedules: single messages by their time, then those that repeat."""
    async with aclosing(natty.scheduler.list(stream, pattern)) as waiting:
        found = [one async for one in waiting]
    return sorted(found, key=lambda one: (one.at is None, one.at.timestamp() if one.at else 0.0, one.subject))


@app.command()
@connect.options
def add(
    *,
    nats: dict[str, Any],
    name: Annotated[str, typer.Argument(help="The schedule's name; it replaces an earlier one of that name.")],
    subject: Annotated[str, typer.Argument(help="The subject to publish on.")],
    body: Annotated[
        str | None, typer.Argument(help="The message. Default: standard input, if it is a pipe or a file.")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Publish once, at this time: 2026-11-23T18:00:00Z."),
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="DURATION", help="Publish once, after this time: 5m.")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Interval of repeated publishing: 5m; at least 1s.")
    ] = None,
    cron: Annotated[
        str, typer.Option(help="Publish by a crontab expression: '0 3 * * *'; with seconds first, six fields; @daily.")
    ] = "",
    timezone: Annotated[
        str, typer.Option("--timezone", help="Time zone of --cron, as Europe/Berlin. Default: UTC.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Subject of the stream whose last message is published in place of the body.")
    ] = "",
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time after which the stream deletes each published message.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="Header, 'Name: value'. May be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Have the server publish a message later, once or repeatedly."""
    check_subject(subject)
    if sum(map(bool, (at, after, every, cron))) != 1:
        raise typer.BadParameter("give one of --at, --after, --every and --cron")
    if timezone and not cron:
        raise typer.BadParameter("it is for --cron", param_hint="--timezone")
    given = {"at": at, "after": after, "every": every, "cron": cron, "timezone": timezone, "source": source}
    options: Any = {name: value for name, value in given.items() if value} | {"headers": headers_of(header or [])}
    options |= {"ttl": ttl} if ttl else {}
    usage(lambda: ScheduleOptions(**options).write_headers())
    data = b"" if source and body is None else body_of(body)
    ack = connect.call(nats, lambda natty: natty.schedule(name, subject, data, **options))
    show_waiting(ack, subject, as_json)


def show_waiting(ack: PubAck, subject: str, as_json: bool) -> None:
    """Print where a message is kept that the server publishes later."""
    if as_json:
        print_document({"stream": ack.stream, "sequence": ack.seq, "schedule": ack.schedule})
    else:
        say(f"stored in {ack.stream} on {ack.schedule}, to be published on {subject}")


@app.command()
@connect.options
def show(*, nats: dict[str, Any], stream: Stream, name: Name, as_json: Json = False) -> None:
    """Show a schedule: when and where the server publishes, and the message."""
    found = connect.call(nats, lambda natty: natty.scheduler.get(stream, name), stream=stream)
    if as_json:
        print_document(_fields(found))
        return
    say(f"{found.name}: {found.timing}, on {found.target}")
    for label, value in (("source", found.source), ("ttl", found.ttl), ("stored", found.stored)):
        if value:
            say(f"  {label}: {value}")
    for header, values in found.headers.items():
        say(*(f"{header}: {value}" for value in values))
    write(b"\n" + found.data + b"\n")


def _fields(one: Schedule) -> dict[str, Any]:
    """Return a schedule for JSON, without what is empty."""
    facts = {"name": one.name, "subject": one.subject, "target": one.target, "schedule": one.spec}
    more = {"timezone": one.timezone, "source": one.source, "ttl": one.ttl}
    place = {"stream": one.stream, "sequence": one.sequence, "stored": one.stored}
    return (
        facts | {name: value for name, value in more.items() if value} | place | content_fields(one.headers, one.data)
    )


@app.command()
@connect.options
def rm(
    *,
    nats: dict[str, Any],
    stream: Stream,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Names, or the subjects that hold them.", autocompletion=completion.schedules
        ),
    ],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Remove schedules, so that the server does not publish them; asks first. Exits with 1 if one was not there."""
    for name in names:
        subject_of(stream, name)
    confirm(f"Remove {write_count(len(names), 'schedule')} of stream {stream}?", force=force)
    removed = connect.call(nats, lambda natty: _rm(natty, stream, names), stream=stream)
    if as_json:
        print_document({"stream": stream, "removed": removed})
    else:
        for name, done in removed.items():
            say(f"removed {name}" if done else f"{name} does not wait in stream {stream}: published, or removed before")
    if not all(removed.values()):
        raise typer.Exit(1)


async def _rm(natty: Natty, stream: str, names: list[str]) -> dict[str, bool]:
    return {name: await natty.scheduler.cancel(stream, name) for name in names}

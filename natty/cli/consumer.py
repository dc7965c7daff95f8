"""`natty consumer`: lists, shows, deletes and pauses consumers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.ask import Force, ask_if_missing, confirm
from natty.cli.choose import consumer_of, stream_of
from natty.cli.consumer_make import add, edit
from natty.cli.consumer_next import next_messages
from natty.cli.consumer_show import facts_of, list_rows, report_rows
from natty.cli.setting_flags import moment
from natty.cli.tables import Json, print_document, print_facts, print_table
from natty.cli.terminal import say
from natty.config.units import NANOSECONDS, show_duration, write_time
from natty.errors import ConfigError
from natty.streams import ConsumerInfo, consumer_info, stream_state
from natty.streams.listing import Listing, all_consumers, consumer_names

app = typer.Typer(help="Consumers.", no_args_is_help=True)

Stream = Annotated[str | None, typer.Argument(help="The stream's name.", autocompletion=completion.streams)]
Consumer = Annotated[str | None, typer.Argument(help="The consumer's name.", autocompletion=completion.consumers)]


app.command("next")(next_messages)
app.command("add")(add)
app.command("edit")(edit)


@app.command()
@connect.options
def ls(
    *,
    nats: dict[str, Any],
    stream: Stream = None,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print only names.")] = False,
    as_json: Json = False,
) -> None:
    """List the consumers of a stream."""
    stream = stream_of(nats, stream)
    if names:
        found = connect.call(nats, lambda natty: consumer_names(natty.jetstream, stream), stream=stream)
        print_document(found) if as_json else say(*found)
        return
    listing = connect.call(nats, lambda natty: all_consumers(natty.jetstream, stream), stream=stream)
    if as_json:
        print_document(listing.found)
    else:
        print_table(*list_rows(listing, datetime.now(UTC)))


@app.command()
@connect.options
def info(*, nats: dict[str, Any], stream: Stream = None, consumer: Consumer = None, as_json: Json = False) -> None:
    """Show a consumer's settings and position."""
    stream = stream_of(nats, stream)
    consumer = consumer_of(nats, stream, consumer)
    told = _read(nats, stream, consumer)
    if as_json:
        print_document(told)
    else:
        print_facts(f"Consumer {consumer} of stream {stream}", facts_of(told, datetime.now(UTC)))


@app.command()
@connect.options
def report(
    *,
    nats: dict[str, Any],
    stream: Stream = None,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print plain numbers.")] = False,
    leaders: Annotated[
        bool, typer.Option("--leaders", "-l", help="Count the consumers that each server leads.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Report on the consumers of a stream: waiting, unacknowledged and redelivered messages."""
    stream = stream_of(nats, stream)
    listing, stored = connect.call(nats, lambda natty: _report(natty, stream), stream=stream)
    if as_json:
        print_document({"stream": stream, "messages": stored, "consumers": listing.found, "missing": listing.missing})
        return
    print_table(*report_rows(listing, stored, raw=raw))
    led = [leader for one in listing.found if (leader := (one.get("cluster") or {}).get("leader"))]
    if leaders and led:
        print_table(("leader", ">consumers"), [(name, led.count(name)) for name in sorted(set(led))])


@app.command()
@connect.options
def rm(*, nats: dict[str, Any], stream: Stream = None, consumer: Consumer = None, force: Force = False) -> None:
    """Delete a consumer of any kind; its position is lost."""
    stream = stream_of(nats, stream)
    consumer = consumer_of(nats, stream, consumer)
    told = _read(nats, stream, consumer)
    place = f"{told['num_ack_pending']:,} messages unacknowledged, {told['num_pending']:,} not yet delivered"
    confirm(f"Delete consumer {consumer} of stream {stream}, {place}?", force=force)
    connect.call(nats, lambda natty: natty.delete_consumer(stream, consumer))
    say(f"deleted {consumer} of stream {stream}")


@app.command()
@connect.options
def pause(
    *,
    nats: dict[str, Any],
    stream: Stream = None,
    consumer: Consumer = None,
    until: Annotated[
        datetime | None, typer.Argument(parser=moment, metavar="UNTIL", help="Duration, such as 1h30m, or time, UTC.")
    ] = None,
    force: Force = False,
) -> None:
    """Pause a consumer: it delivers no messages for a while, and keeps its position."""
    stream = stream_of(nats, stream)
    consumer = consumer_of(nats, stream, consumer)
    until = ask_if_missing(until, "UNTIL", "Pause for a duration, or until a time", moment)
    confirm(f"Pause consumer {consumer} of stream {stream} until {_show_time(until)}?", force=force)
    answer = connect.call(nats, lambda natty: natty.pause_consumer(stream, consumer, until))
    left = show_duration(round(answer["pause_remaining"] / NANOSECONDS))
    say(f"paused {consumer} of stream {stream} until {_show_time(until)}, {left} from now")


@app.command()
@connect.options
def resume(*, nats: dict[str, Any], stream: Stream = None, consumer: Consumer = None, force: Force = False) -> None:
    """Resume a paused consumer."""
    stream = stream_of(nats, stream)
    consumer = consumer_of(nats, stream, consumer)
    if not _read(nats, stream, consumer).get("paused"):
        raise ConfigError(f"consumer {consumer} of stream {stream} is not paused")
    confirm(f"Resume consumer {consumer} of stream {stream}?", force=force)
    connect.call(nats, lambda natty: natty.resume_consumer(stream, consumer))
    say(f"resumed {consumer} of stream {stream}")


def _show_time(when: datetime) -> str:
    return write_time(when.timestamp())


def _read(nats: dict[str, Any], stream: str, consumer: str) -> ConsumerInfo:
    return connect.call(
        nats, lambda natty: consumer_info(natty.jetstream, stream, consumer), stream=stream, consumer=consumer
    )


async def _report(natty: Natty, stream: str) -> tuple[Listing[ConsumerInfo], int]:
    state = await stream_state(natty.jetstream, stream)
    return await all_consumers(natty.jetstream, stream), state["messages"]

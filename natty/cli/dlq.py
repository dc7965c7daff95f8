"""`natty dlq`: lists and shows dead letters, retries them, removes them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from natty import Letter, LetterFilter, Natty, NattyError
from natty.cli import completion, connect
from natty.cli.ask import Force
from natty.cli.tables import Json, PlainConsole, print_document, print_pairs, print_table
from natty.cli.terminal import printable, say
from natty.config.units import NANOSECONDS, parse_time, write_count, write_time
from natty.consuming.dead_letters import LETTERS, Retried

app = typer.Typer(help="Dead letters.", no_args_is_help=True)

LISTED = 50  # letters that `ls` shows by default
SHOWN_CHARACTERS = 4096  # of a payload as text; `--json` prints all of it
SHOWN_REFUSALS = 5
COLUMNS = ("letter", "buried", "stream", "sequence", "consumer", "subject", "bytes", "reason")
NUMBERS = ("letter", "sequence", "bytes")

Stream = Annotated[str, typer.Option(help="Only letters from this stream.", autocompletion=completion.streams)]
Consumer = Annotated[str, typer.Option(help="Only letters of this consumer.", autocompletion=completion.consumers)]
Reason = Annotated[str, typer.Option(help="Only letters whose reason contains this text, in any case.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of letters, the oldest first.")]
Letters = Annotated[
    str, typer.Option("--letters", help="The stream that holds the letters.", autocompletion=completion.streams)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the selected letters; change nothing.")]


@app.command()
@connect.options
def ls(
    *,
    nats: dict[str, Any],
    stream: Stream = "",
    consumer: Consumer = "",
    reason: Reason = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of letters.")] = LISTED,
    oldest: Annotated[bool, typer.Option("--oldest", help="List the oldest first.")] = False,
    letters: Letters = LETTERS,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest first."""
    wanted = LetterFilter(stream=stream, consumer=consumer, reason=reason)
    found = _list(nats, letters, wanted, limit + 1, newest_first=not oldest)
    _print_list(found[:limit], as_json=as_json)
    if len(found) > limit:
        print(f"natty: there are more than {write_count(limit, 'letter')}: raise --limit", file=sys.stderr)


@app.command()
@connect.options
def show(
    *,
    nats: dict[str, Any],
    sequence: Annotated[int, typer.Argument(help="The letter's number, as `ls` shows it.")],
    letters: Letters = LETTERS,
    as_json: Json = False,
) -> None:
    """Show one dead letter: its origin, its reason, its headers and its payload."""
    letter = connect.call(nats, lambda natty: natty.dead_letters(letters).show(sequence))
    if as_json:
        details = {"traceback": letter.traceback, "headers": letter.headers}
        print_document(facts_of(letter) | details | payload_of(letter.data))
    else:
        _print_letter(letter)


@app.command()
@connect.options
def retry(
    *,
    nats: dict[str, Any],
    stream: Stream = "",
    consumer: Consumer = "",
    reason: Reason = "",
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Maximum number of messages per second.")] = None,
    dry_run: DryRun = False,
    letters: Letters = LETTERS,
    as_json: Json = False,
) -> None:
    """Publish the original messages again, on their own subjects, and remove their letters.

    Safe to interrupt and to repeat. Every consumer of the subject gets them; the header Natty-Retry-For names the one
    that failed.
    """
    wanted = LetterFilter(stream=stream, consumer=consumer, reason=reason)
    if dry_run:
        _print_list(_list(nats, letters, wanted, limit), as_json=as_json)
        return
    result = connect.call(nats, lambda natty: natty.dead_letters(letters).retry(wanted, rate=rate, limit=limit))
    if as_json:
        print_document({"published": result.published, "refused": result.refused})
    else:
        say(f"published again: {_count(result.published)}")
    if result.refused:
        raise NattyError(_refusals(result))


@app.command()
@connect.options
def purge(
    *,
    nats: dict[str, Any],
    stream: Stream = "",
    consumer: Consumer = "",
    reason: Reason = "",
    limit: Limit = None,
    force: Force = False,
    dry_run: DryRun = False,
    letters: Letters = LETTERS,
    as_json: Json = False,
) -> None:
    """Remove dead letters permanently: those that exist when the command starts, not later ones."""
    wanted = LetterFilter(stream=stream, consumer=consumer, reason=reason)
    up_to = None
    if not force and not dry_run and not sys.stdin.isatty():
        raise NattyError(
            "letters are removed permanently, and there is no terminal to ask on: give --force, or try --dry-run"
        )
    if not force:
        meant = _list(nats, letters, wanted, limit)
        if dry_run:
            _print_list(meant, as_json=as_json)
            return
        typer.confirm(f"Remove {_count(len(meant))} permanently?", abort=True, err=True)
        up_to = meant[-1]["letter"] if meant else 0
    purged = connect.call(nats, lambda natty: natty.dead_letters(letters).purge(wanted, limit=limit, up_to=up_to))
    if as_json:
        print_document({"purged": purged})
    else:
        say(f"removed: {_count(purged)}")


def _list(
    nats: dict[str, Any], letters: str, wanted: LetterFilter, limit: int | None, *, newest_first: bool = False
) -> list[dict[str, Any]]:
    async def read(natty: Natty) -> list[dict[str, Any]]:
        found = natty.dead_letters(letters).ls(wanted, newest_first=newest_first, limit=limit)
        return [facts_of(letter) async for letter in found]

    return connect.call(nats, read)


def facts_of(letter: Letter) -> dict[str, Any]:
    """Return the fields that a list shows of a letter: everything but the traceback, the headers and the payload."""
    return {
        "letter": letter.sequence,
        "buried": letter.buried,
        "stream": letter.stream,
        "sequence": letter.original_sequence,
        "consumer": letter.consumer,
        "subject": letter.subject,
        "time": letter.time,
        "deliveries": letter.deliveries,
        "bytes": len(letter.data) if letter.has_payload else None,
        "reason": letter.reason,
        "error": letter.error,
        "digest": letter.digest,
        "complete": letter.complete,
    }


def payload_of(data: bytes) -> dict[str, str]:
    """Return `{"payload": text}`, or `{"payload_hex": digits}` if it is not UTF-8."""
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": data.hex()}


def preview(data: bytes) -> str:
    """Return the beginning of a payload for display: as text if it is UTF-8, otherwise as hexadecimal digits."""
    payload = payload_of(data)
    if "payload" in payload:
        text, size = printable(payload["payload"][:SHOWN_CHARACTERS], also="\n\t"), len(payload["payload"])
        return (
            text
            if size <= SHOWN_CHARACTERS
            else f"{text}\n… {write_count(size - SHOWN_CHARACTERS, 'more character')}: see --json"
        )
    digits = data[: SHOWN_CHARACTERS // 2].hex(" ")
    more = len(data) - SHOWN_CHARACTERS // 2
    return digits if more <= 0 else f"{digits}\n… {write_count(more, 'more byte')}: see --json"


def _print_list(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_document(found)
        return
    if not found:
        say("no dead letters")
        return
    brief = [facts | {"buried": write_time(parse_time(facts["buried"]) / NANOSECONDS)} for facts in found]
    rows = [["gone" if one[name] is None else one[name] for name in COLUMNS] for one in brief]
    print_table([f">{name}" if name in NUMBERS else name for name in COLUMNS], rows)


def _print_letter(letter: Letter) -> None:
    console = PlainConsole()
    console.soft_wrap = True  # a payload is printed unchanged
    facts = [(f"{name.replace('_', ' ')}:", value) for name, value in facts_of(letter).items()]
    headers = [("header:", f"{name}: {', '.join(values)}") for name, values in letter.headers.items()]
    print_pairs((name, value) for name, value in facts + headers if value not in ("", None))
    for line in letter.traceback:
        console.print(Text("  " + printable(line)))
    payload = (
        preview(letter.data) if letter.has_payload else "(the payload was already deleted when the letter was written)"
    )
    console.print(Text("\n" + payload))


def _count(letters: int) -> str:
    return write_count(letters, "dead letter")


def _refusals(result: Retried) -> str:
    first = [f"{sequence}: {why}" for sequence, why in list(result.refused.items())[:SHOWN_REFUSALS]]
    more = len(result.refused) - len(first)
    rest = f"; and {more} more" if more else ""
    return f"{_count(len(result.refused))} could not be published and are kept: {'; '.join(first)}{rest}"

"""`natty stream purge`, `rm-msg` and `get`: the messages of a stream."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from natty.cli import connect
from natty.cli.ask import Force, ask_if_missing, confirm, number
from natty.cli.choose import StreamName, stream_of
from natty.cli.show import stored_fields, stored_text
from natty.cli.tables import Json, print_document
from natty.cli.terminal import say, write
from natty.config.units import write_count
from natty.errors import ConfigError
from natty.names import check_pattern
from natty.streams import StreamState, stream_state
from natty.streams.contents import check_purge, delete_message, message, purge

Sequence = Annotated[int | None, typer.Argument(metavar="SEQUENCE", min=1, help="The message's sequence.")]


@connect.options
def purge_messages(
    *,
    nats: dict[str, Any],
    name: StreamName = None,
    subject: Annotated[
        str, typer.Option("--subject", help="Only messages on this subject; wildcards are allowed.")
    ] = "",
    seq: Annotated[int, typer.Option("--seq", min=0, help="Only messages before this sequence.")] = 0,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of newest messages to keep.")] = 0,
    allow_pending: Annotated[
        bool,
        typer.Option(
            "--allow-pending",
            help="With --subject, purge even if consumers hold other unacknowledged messages, which the server then"
            " does not deliver again.",
        ),
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Delete messages of a stream: all of them, those on a subject, those before a sequence; asks first."""
    if seq and keep:
        raise typer.BadParameter(
            "choose one of --seq and --keep: a purge stops at a sequence, or keeps a number of messages"
        )
    name = stream_of(nats, name)
    subjects = check_pattern(subject) if subject else ""
    state = connect.call(nats, lambda natty: stream_state(natty.jetstream, name, subjects=subjects), stream=name)
    if seq > state["last_seq"] + 1:
        raise ConfigError(f"stream {name} ends at sequence {state['last_seq']}: --seq {seq} would skip sequences")
    if subject and not allow_pending:
        connect.call(nats, lambda natty: check_purge(natty.jetstream, name, subject))
    confirm(_question(name, state, subject, seq, keep), force=force)
    limits: dict[str, Any] = {"subject": subject, "below": seq, "keep": keep, "allow_pending": allow_pending}
    purged = connect.call(nats, lambda natty: purge(natty.jetstream, name, **limits), stream=name)
    if as_json:
        print_document({"stream": name, "purged": purged})
    else:
        say(f"purged {write_count(purged, 'message')} of stream {name}")


@connect.options
def rm_msg(
    *,
    nats: dict[str, Any],
    name: StreamName = None,
    sequence: Sequence = None,
    erase: Annotated[
        bool, typer.Option("--erase/--no-erase", help="Overwrite it on the disk, or only mark it as deleted.")
    ] = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Delete one message securely: it is overwritten on the disk; asks first."""
    name = stream_of(nats, name)
    sequence = ask_if_missing(sequence, "SEQUENCE", "Sequence of the message", number)
    found = connect.call(nats, lambda natty: message(natty.jetstream, name, sequence=sequence), stream=name)
    what = f"message {sequence} of stream {name}, {write_count(len(found.data), 'byte')} on {found.subject}"
    confirm(f"{'Erase' if erase else 'Delete'} {what}?", force=force)
    deleted = connect.call(
        nats, lambda natty: delete_message(natty.jetstream, name, sequence, erase=erase), stream=name
    )
    if as_json:
        print_document({"stream": name, "sequence": sequence, "deleted": deleted})
    else:
        say(f"deleted {what}" if deleted else f"message {sequence} of stream {name} was already deleted")


@connect.options
def get(
    *,
    nats: dict[str, Any],
    name: StreamName = None,
    sequence: Sequence = None,
    last_for: Annotated[
        str,
        typer.Option(
            "--last-for", "-S", metavar="SUBJECT", help="Last message on this subject; wildcards are allowed."
        ),
    ] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Print only the payload.")] = False,
    as_json: Json = False,
) -> None:
    """Show one message of a stream, by its sequence or the last one on a subject."""
    if sequence is not None and last_for:
        raise typer.BadParameter("choose one of SEQUENCE and --last-for")
    name = stream_of(nats, name)
    if not last_for:
        sequence = ask_if_missing(sequence, "SEQUENCE, or --last-for,", "Sequence of the message", number)
    wanted: dict[str, Any] = {"sequence": sequence or 0, "last_for": check_pattern(last_for) if last_for else ""}
    found = connect.call(nats, lambda natty: message(natty.jetstream, name, **wanted), stream=name)
    if as_json:
        print_document(stored_fields(name, found))
        return
    write(found.data + b"\n" if raw else stored_text(name, found))


def _question(name: str, state: StreamState, subject: str, seq: int, keep: int) -> str:
    """Return the question, which says what would be deleted."""
    on = f" on {subject}" if subject else ""
    held = sum((state.get("subjects") or {}).values()) if subject else state["messages"]
    if seq:
        return f"Purge stream {name}: the messages{on} before sequence {seq}?"
    if keep:
        return f"Purge stream {name}: {write_count(max(0, held - keep), 'message')}{on}, all but the newest {keep}?"
    return f"Purge stream {name}: {write_count(held, 'message')}{on}, all there {'is' if held == 1 else 'are'}?"

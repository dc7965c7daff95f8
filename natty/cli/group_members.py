"""`natty group … consume|prompt|auto|lag|watch`: read as a member, and watch a group."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.live import Live

from natty import Message, Natty
from natty.cli import connect
from natty.cli.ask import seconds
from natty.cli.group_shared import Group, Member, Stream, add_command, admin_of
from natty.cli.tables import Json, PlainConsole, Rows, print_document, print_table
from natty.consuming.shutdown import stop_on_signals
from natty.errors import NattyError
from natty.groups.admin import Kind, MemberState
from natty.groups.lag import lag
from natty.groups.member import Membership
from natty.groups.roster import TTL

Sleep = Annotated[str, typer.Option("--sleep", help="Time to work on each message.")]
AckWait = Annotated[
    str, typer.Option("--ack-wait", help="Time after which a dead instance's messages go to another one.")
]
Pending = Annotated[
    int,
    typer.Option("--max-ack-pending", min=1, help="Maximum unacknowledged messages of the member; `cg consume` has 1."),
]
_HELP = "the commands of `natty group KIND`, without these words; static, elastic, processing-time DURATION, exit"


def add_commands(apps: Mapping[Kind, typer.Typer]) -> None:
    """Add to each kind of group the commands that read as a member, and those that show the members' progress."""
    for kind in apps:
        _add(kind, apps)


def _add(kind: Kind, apps: Mapping[Kind, typer.Typer]) -> None:
    app = apps[kind]

    @add_command(app, "consume", "join")
    @connect.options
    def consume(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        member: Member,
        sleep: Sleep = "20ms",
        ack_wait: AckWait = "2s",
        max_ack_pending: Pending = 1,
    ) -> None:
        """Read as a member until interrupted or the group is deleted; print one JSON line per message."""
        options = {"ack_wait": seconds(ack_wait), "max_ack_pending": max_ack_pending}
        connect.call(nats, lambda natty: _consume(natty, kind, stream, group, member, seconds(sleep), options))

    @app.command()
    @connect.options
    def prompt(*, nats: dict[str, Any], sleep: Sleep = "20ms") -> None:
        """Run commands from a prompt, or from standard input, one per line."""
        _prompt(apps, kind, nats, sleep)

    @app.command(name="lag")
    @connect.options
    def lag_(*, nats: dict[str, Any], stream: Stream, group: Group, as_json: Json = False) -> None:
        """Show the number of waiting messages of each partition, and its member."""
        rows, _ = connect.call(nats, lambda natty: _look(natty, kind, stream, group))
        if as_json:
            print_document(rows)
        else:
            columns = (">partition", "member", ">lag")
            print_table(columns, [(row["partition"], row["member"] or "none", row["lag"]) for row in rows])

    @app.command()
    @connect.options
    def watch(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        every: Annotated[str, typer.Option("--every", help="Time between updates.")] = "1s",
        count: Annotated[int | None, typer.Option(min=1, help="Number of updates, then exit.")] = None,
        as_json: Json = False,
    ) -> None:
        """Show members, their partitions, pinned instances and waiting messages, until interrupted."""
        connect.call(nats, lambda natty: _watch(natty, kind, stream, group, seconds(every), count, as_json=as_json))

    if kind == "elastic":
        _add_auto(app)


def _add_auto(app: typer.Typer) -> None:
    @app.command()
    @connect.options
    def auto(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        sleep: Sleep = "20ms",
        ack_wait: AckWait = "5s",
        ttl: Annotated[
            str, typer.Option("--ttl", help="Time without a heartbeat after which its partitions go to others.")
        ] = f"{TTL:g}s",
    ) -> None:
        """Read as an unnamed member that joins and leaves automatically; print one JSON line per message."""
        options = {"ack_wait": seconds(ack_wait), "ttl": seconds(ttl)}
        connect.call(nats, lambda natty: _consume(natty, "elastic", stream, group, None, seconds(sleep), options))


async def _consume(
    natty: Natty, kind: Kind, stream: str, name: str, member: str | None, sleep: float, options: dict[str, Any]
) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(sleep)
        line = {"member": membership.member, "subject": message.subject, "sequence": message.sequence}
        print(json.dumps(line | {"deliveries": message.deliveries}), flush=True)

    membership: Membership
    if kind == "elastic":
        membership = natty.group(stream, name).join(member, handle, **options)
    else:
        membership = natty.static_group(stream, name).join(member or "", handle, **options)
    async with membership:
        print(f"reading as {membership.member}", file=sys.stderr, flush=True)
        with stop_on_signals(membership.leave):
            await membership.wait_until_ended()


async def _look(natty: Natty, kind: Kind, stream: str, group: str) -> tuple[list[dict[str, Any]], list[MemberState]]:
    admin = admin_of(natty, kind, stream, group)
    members = await admin.members()
    waiting = await lag(natty.jetstream, admin)
    owners = {partition: one.name for one in members for partition in one.partitions}
    rows = [{"partition": number, "member": owners.get(number, ""), "lag": waiting[number]} for number in waiting]
    return rows, members


async def _watch(
    natty: Natty, kind: Kind, stream: str, group: str, every: float, count: int | None, *, as_json: bool
) -> None:
    looks = 0
    with Live(console=PlainConsole(live=True), auto_refresh=False) as live:
        while True:
            rows, members = await _look(natty, kind, stream, group)
            state = [_state(one, rows) for one in members]
            if as_json:
                live.console.print(json.dumps({"members": state, "partitions": rows}), soft_wrap=True, markup=False)
            else:
                live.update(_table_of_members(state), refresh=True)
            looks += 1
            if looks == count:
                return
            await asyncio.sleep(every)


def _state(member: MemberState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    waiting = sum(row["lag"] for row in rows if row["partition"] in member.partitions)
    return {
        "member": member.name,
        "partitions": list(member.partitions),
        "pinned": member.pinned,
        "instances": member.waiting,
        "unacked": member.unacked,
        "lag": waiting,
    }


def _table_of_members(members: list[dict[str, Any]]) -> Rows:
    rows = []
    for one in members:
        numbers = ", ".join(map(str, one["partitions"])) or "none"
        rows.append((one["member"], numbers, one["pinned"][:8] or "none", *(one[name] for name in _COUNTS)))
    return Rows(("member", "partitions", "pinned", ">pulls", ">unacked", ">lag"), rows)


_COUNTS = ("instances", "unacked", "lag")


def _prompt(apps: Mapping[Kind, typer.Typer], kind: Kind, nats: dict[str, Any], sleep: str) -> None:
    """Run lines as commands of this kind of group. After an error, print it and continue."""
    while True:
        print(f"[{kind}]> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        words = shlex.split(line)
        if not line or words[:1] in (["exit"], ["quit"]):
            return
        match words:
            case []:
                continue
            case ["?" | "help"]:
                print(_HELP)
            case ["static" | "elastic" as other]:
                kind = "static" if other == "static" else "elastic"
            case ["processing-time", duration]:
                sleep = duration
            case [command, *_]:
                more = ["--sleep", sleep] if command in ("consume", "join", "auto") else []
                _run(apps[kind], [*words, *more, *connect.flags_of(nats)])


def _run(app: typer.Typer, words: list[str]) -> None:
    try:
        app(words, prog_name="natty group", standalone_mode=False)
    except (NattyError, typer.Abort) as error:
        print(error or "aborted", file=sys.stderr)
    except typer.Exit:
        return
    except Exception as error:
        if (show := getattr(error, "show", None)) is None:
            raise
        show()

"""`capture config`: shows where each setting comes from, and checks whether a node could start with it.

`capture permissions`: the least permissions that a role needs, as a block for the server's configuration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
import typer

from capture.archive.heads import SWEEP
from capture.archive.iceberg_state import is_reachable
from capture.archive.stored_formats import format_of, is_open, list_limits
from capture.cli import settings
from capture.cli.node import run
from capture.config.load import NEEDED, RELATED, contradictions, find_missing, gather_settings, read
from capture.config.load import settings as settings_of
from capture.config.permissions import Role
from capture.config.permissions import permissions as permissions_of
from capture.config.pipelines import PIPELINE, find_code_faults, find_faults, pipelines_name
from capture.config.provenance import DEFAULT, Given, Place
from capture.config.secrets import check_exposure
from capture.config.settings import CaptureConfig
from capture.decoders import decoder
from capture.errors import CaptureError, ConfigError
from capture.ingest.hooks import hook
from capture.ingest.layout import layout
from capture.partitioners import partitioner
from capture.pipelines.definition import Pipeline
from capture.stores import Address, open_store
from capture.stores.own_store import HIDDEN, is_own, shown
from capture.stores.plugin import is_plugin
from natty.cli import connect
from natty.cli.tables import print_document
from natty.config.settings import Config, redact, resolve
from natty.config.tls import client_context
from natty.elections.permissions import INBOX
from natty.errors import NattyError
from natty.names import check_name

WIDEST = 40  # characters: longer values move their origin to the right

_FLAGS = {
    "stream": "stream",
    "store": "store",
    "source": "source",
    "durable": "durable",
    "group": "group",
    "member": "member",
    "node_name": "node",
    "workers": "workers",
    "decoder": "decoder",
    "partition": "partition",
    "block_format": "format",
    "envelope": "envelope",
    "compression": "compression",
    "max_age": "limits.max_age",
    "max_messages": "limits.max_messages",
}
"""Option of `capture run` → its setting."""

_NATS = {field.name: field.repr for field in dataclasses.fields(Config)} | {"context": True}
"""The settings of `[nats]`, and whether each may be shown. Unknown settings are not shown: they may be secret."""
_SECRET = re.compile(r"-----BEGIN|\bS[A-Z][A-Z2-7]{54}|:[A-Za-z0-9+/]{43}=")
"""A key in place of the path of its file: PEM, a seed of NATS, a key of `CAPTURE_KEYS`."""

app = typer.Typer(help="Show and check the configuration.", no_args_is_help=True)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `capture run` for settings to a command; it gets them as `flags`, by setting."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        nats = given.pop("nats")
        flags = {setting: given.pop(option) for option, setting in _FLAGS.items()}
        command(flags=flags | {f"nats.{name}": value for name, value in nats.items()}, **given)

    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "flags"]
    options = [one for name, one in inspect.signature(run).parameters.items() if name in _FLAGS]
    with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined] # what typer reads
    return connect.options(with_options)


@app.command()
@_with_flags
def show(*, flags: dict[str, Any], config: settings.Config = None, as_json: settings.Json = False) -> None:
    """Show every setting, its value, and the flag, variable or file that it comes from. Shows no secrets."""
    given = gather_settings(config, flags)
    read_config, faults = read(given)
    if faults:
        raise ConfigError(next(iter(faults.values())))
    rows = [
        (".".join(place), redact_value(place, value), given.source(place))
        for setting, whole in settings_of(read_config)
        if setting != PIPELINE or not whole
        for place, value in _each(setting, whole)
    ]
    rows += _show_pipelines(read_config.pipeline, given)
    if as_json:
        print_document({name: {"value": value, "source": source} for name, value, source in rows}, default=str)
        return
    table = [(name, json.dumps(value, ensure_ascii=False, default=str), source) for name, value, source in rows]
    names, values = (max(len(row[column]) for row in table) for column in (0, 1))
    for name, text, source in table:
        print(f"{name:<{names}}  {text:<{min(values, WIDEST)}}  {source}")


@app.command()
@_with_flags
def check(*, flags: dict[str, Any], config: settings.Config = None) -> None:
    """Check whether a node could start with the configuration, without connecting. Exits with 1 if there are problems.

    Prints a sentence for each problem.
    """
    given = gather_settings(config, flags)
    found = problems(given)
    try:
        check_exposure(config, given)
    except ConfigError as error:
        found.append(str(error))
    for sentence in found:
        typer.echo(f"capture: {sentence}", err=True)
    if found:
        raise typer.Exit(1)
    print(f"{config or 'the configuration'}: fine")
    for sentence in limits(read(given)[0]):
        print(f"note: {sentence}")


def permissions(
    *,
    role: Annotated[Role, typer.Argument(help="Work of the process for the archive.")],
    config: settings.Config = None,
    stream: settings.Stream = None,
    durable: Annotated[str | None, typer.Option(help="Name of the durable consumer.")] = None,
    source: Annotated[str | None, typer.Option(help="How nodes read: consumer, or direct.")] = None,
    setup: Annotated[bool, typer.Option("--setup", help="Also permit the creation of missing buckets.")] = False,
    inbox: Annotated[str, typer.Option("--inbox-prefix", help="Prefix of the user's inboxes.")] = INBOX,
) -> None:
    """Print the NATS permissions that a role needs, for the server's configuration. Does not connect."""
    flags = {"stream": stream, "durable": durable, "source": source}
    wanted, whole = (
        settings.archive(config, flags, {}, needs=("stream",)),
        settings.archive(config, flags, {}, needs=()),
    )
    pipelines = pipelines_name(whole) if whole.pipeline else ""
    print(permissions_of(role, wanted, setup=setup, pipelines=pipelines).block(inbox))


def problems(given: Given) -> list[str]:
    """Return a sentence for each reason why a node could not start with these settings. Does not connect.

    Checks that depend on an invalid setting are skipped.
    """
    config, faults = read(given)
    faulty = {place[0] for place in faults}
    found = [*faults.values(), *find_missing(config, tuple(name for name in NEEDED if name not in faulty))]

    def check_setting(attempt: Callable[..., Any], *arguments: Any, of: tuple[str, ...], **options: Any) -> Any:
        if not faulty.isdisjoint(of):
            return None
        try:
            return attempt(*arguments, **options)
        except (CaptureError, NattyError) as error:
            found.append(given.blame(str(error), *of))
        except Exception as error:  # a module of the user may raise anything
            found.append(given.blame(f"{' or '.join(of)} can't be used: {type(error).__name__}: {error}", *of))
        return None

    if faulty.isdisjoint((*RELATED, "table")):
        found += contradictions(config, given)
    if config.pipeline:
        named = faulty.isdisjoint((PIPELINE[0], "stream", "streams")) and bool(config.stream or config.streams)
        found += find_faults(config, given, complete=named) or find_code_faults(config, given)
    for kind in ("stream", "durable", "group", "member"):
        if name := getattr(config, kind):
            check_setting(check_name, kind, name, of=(kind,))
    for name in config.streams:
        check_setting(check_name, "stream", name, of=("streams",))
    if config.archive:
        check_setting(SWEEP.election, config.archive, of=("archive",))
    if config.store:
        check_setting(open_store, config.store, of=("store",))
    decode = check_setting(decoder, config.decoder, of=("decoder",))
    check_setting(partitioner, config.partition, of=("partition",))
    check_setting(layout, config.layout, of=("layout",))
    check_setting(hook, config.on_store_complete, of=("on_store_complete",))
    from capture.formats import writer

    made_of = {name: getattr(config, name) for name in ("compression", "flatten", "envelope")}
    check_setting(writer, config.format, decode=decode, **made_of, of=("format", *made_of))
    check_setting(config.block_keys, of=("encrypt", "key_file", "encrypted_only"))
    check_setting(config.signer, of=("signing_key_file",))
    check_setting(config.public_keys, of=("public_key_file",))
    unknown = _unknown_of_nats(given)
    found += unknown
    if not unknown:
        check_setting(_try_connection, config.nats, of=("nats",))
    for key_file in filter(_SECRET.search, (config.key_file, config.signing_key_file)):
        found = [sentence.replace(key_file, HIDDEN) for sentence in found]
    return [" ".join(sentence.split()) for sentence in found]


def limits(config: CaptureConfig) -> list[str]:
    """Return a sentence for each operation that an archive with these valid settings does not allow."""
    recorded = format_of(config.format).envelopes.get(config.envelope, config.format)
    found = [f"blocks are {recorded}: {limit}" for limit in list_limits(recorded)]
    if is_plugin(config.format):
        from capture.formats import check_writer
        from capture.formats.own_format import OwnFormat

        try:
            check_writer(OwnFormat.load(config.format, decoder(config.decoder)))
        except AssertionError as fault:
            found.append(f"`check_writer` finds a fault in {config.format}: {fault}")
    if config.store and not is_reachable(open_store(config.store), config.table.location):
        found.append("no other engine can open the objects of this store: the archive has no Iceberg tables")
    if config.table.fresh and (config.encrypt or not is_open(config.format)):
        found.append("fresh shows plain Parquet blocks only: engines see these ones after a compaction at the earliest")
    if config.pipeline and config.encrypt:
        found.append("blocks are encrypted, and the tables of pipelines are not: Spark and other engines open them")
    if config.table.catalog.type == "rest":
        found.append("a REST catalog compares nothing when an entry is replaced: only this archive should change it")
    return found


def _unknown_of_nats(given: Given) -> list[str]:
    found = []
    for (_, *names), setting in given.below(("nats",)).items():
        name = ".".join(names)
        if name and name not in _NATS:
            close = get_close_matches(name, _NATS, 1)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            found.append(setting.origin.complaint(f"there is no setting {name} in nats", hint))
    return found


def _try_connection(nats: Mapping[str, Any]) -> None:
    """Load the files and settings of a connection. Raises NattyError."""
    wanted = resolve({name: value for name, value in nats.items() if name != "context"}, context=nats.get("context"))
    client_context(ca=wanted.tls_ca or None, cert=wanted.tls_cert or None, key=wanted.tls_key or None)


def _show_pipelines(pipelines: Sequence[Pipeline], given: Given) -> list[tuple[str, Any, str]]:
    """Return a row for each setting of the pipelines, below their names: value, and where it comes from."""
    tables = given.settings[PIPELINE].value if pipelines else []
    return [
        (
            f"pipeline.{one.name}.{name}",
            redact_value((*PIPELINE, name), value),
            str(given.origin_in(PIPELINE, number, name)) if name in tables[number] else DEFAULT,
        )
        for number, one in enumerate(pipelines)
        for name, value in msgspec.to_builtins(one).items()
        if name != "name"
    ]


def _each(setting: Place, value: Any) -> list[tuple[Place, Any]]:
    """Return the names of a table of free names, each with its value; for anything else, the setting itself."""
    if isinstance(value, dict) and value:
        return [((*setting, name), msgspec.to_builtins(one)) for name, one in value.items()]
    return [(setting, msgspec.to_builtins(value))]


def redact_value(place: Place, value: Any) -> Any:
    """Return the value without parts that may be secret."""
    match place:
        case ("store",):
            return _redact_store(value)
        case ("nats", "servers") if isinstance(value, list):
            return [redact_value(place, url) for url in value]
        case ("nats", "servers") if isinstance(value, str):
            return _redact_servers(value)
        case ("nats", name) if not _NATS.get(name) or isinstance(value, dict | list):
            return HIDDEN
        case ("spark", "properties", _) | ("table", "catalog", "properties", _):
            return HIDDEN
        case ("table", "catalog", "uri"):
            return redact(value)
    return HIDDEN if isinstance(value, str) and _SECRET.search(value) else value


def _redact_servers(urls: str) -> str:
    one_by_one = re.split(r",(?=\s*\w+://)", urls)  # a comma may be part of a password
    return ",".join(redact(url) if "//" in url else re.sub(".*@", f"{HIDDEN}@", url) for url in one_by_one)


def _redact_store(url: str) -> str:
    if is_own(url) or "://" not in url or url.startswith("file://"):
        return shown(url)
    plain, mark, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    known = Address.__struct_fields__
    said = "&".join(f"{name}{sign}{value if name in known else HIDDEN}" for name, sign, value in parts)
    return redact(plain) + mark + redact(said)

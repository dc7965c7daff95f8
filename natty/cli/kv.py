"""`natty kv`: key-value buckets."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from natty import Bucket, Natty
from natty.cli import completion, connect
from natty.cli.ask import Force, confirm, lifetime, seconds
from natty.cli.setting_flags import document_of
from natty.cli.tables import Json, print_pairs, print_table
from natty.cli.terminal import json_text, say, write
from natty.config.units import write_count
from natty.errors import KeyNotFoundError
from natty.kv import BucketStatus, Entry, Gone, PictureComplete, list_buckets
from natty.streams.schema import BucketConfig, texts

app = typer.Typer(help="Key-value buckets.", no_args_is_help=True)


class Storage(StrEnum):
    """Where a bucket is stored."""

    FILE = "file"
    MEMORY = "memory"


BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket.", autocompletion=completion.buckets)]
Key = Annotated[str, typer.Argument(help="The key.", autocompletion=completion.keys)]
Value = Annotated[str | None, typer.Argument(help="The value. Default: standard input, unchanged.")]
Revision = Annotated[int | None, typer.Option(min=1, help="Revision that the key must have.")]
Ttl = Annotated[float | None, typer.Option(parser=lifetime, metavar="DURATION", help="Time to live of the key.")]
_OWN = texts(BucketConfig)


@app.command()
@connect.options
def add(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    history: Annotated[int | None, typer.Option(min=1, max=64, help=_OWN["history"])] = None,
    ttl: Annotated[float | None, typer.Option(parser=seconds, metavar="DURATION", help=_OWN["ttl"])] = None,
    marker_ttl: Annotated[
        float | None, typer.Option(parser=seconds, metavar="DURATION", help=_OWN["marker_ttl"])
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, max=5, help=_OWN["replicas"])] = None,
    description: Annotated[str | None, typer.Option(help="Description of the bucket.")] = None,
    storage: Annotated[Storage | None, typer.Option(help="Storage of the bucket. Default: file.")] = None,
    max_value_size: Annotated[int | None, typer.Option(min=1, help="Maximum size of a value, in bytes.")] = None,
    max_bucket_size: Annotated[int | None, typer.Option(min=1, help="Maximum size of the bucket, in bytes.")] = None,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the bucket on disk.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Cluster to place the bucket in.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag that servers must have. May be given several times.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="Metadata as name=value. May be given several times.")
    ] = None,
    republish_source: Annotated[
        str | None, typer.Option(help="Pattern of subjects whose stored values are published again.")
    ] = None,
    republish_destination: Annotated[
        str | None, typer.Option(help="Subject on which stored values are published again.")
    ] = None,
    republish_headers: Annotated[
        bool, typer.Option("--republish-headers", help="Publish only the headers again, without values.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a bucket. Fails if it exists with other settings."""
    stream = {"description": description, "max_msg_size": max_value_size, "max_bytes": max_bucket_size}
    settings = {"ttl": ttl, "history": history, "replicas": replicas, "storage": storage and storage.value, **stream}
    settings |= {"marker_ttl": marker_ttl, "compression": "s2" if compress else None}
    tables = {"cluster": cluster, "tag": tag, "metadata": metadata, "republish_headers": republish_headers or None}
    tables |= {"republish_source": republish_source, "republish_destination": republish_destination}
    settings |= document_of(tables)
    _show_status(connect.call(nats, lambda natty: _add(natty, bucket, settings)), as_json)


@app.command()
@connect.options
def ls(
    *,
    nats: dict[str, Any],
    bucket: Annotated[str, typer.Argument(help="A bucket, to list its keys.", autocompletion=completion.buckets)] = "",
    as_json: Json = False,
) -> None:
    """List the buckets, or the keys of one."""
    found = connect.call(nats, lambda natty: natty.bucket(bucket).keys() if bucket else list_buckets(natty.jetstream))
    _show_lines(found, as_json)


@app.command()
@connect.options
def keys(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    filters: Annotated[
        list[str] | None, typer.Argument(help="Only keys below this token, or that match its wildcards * and >.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys that exist."""
    _show_lines(connect.call(nats, lambda natty: natty.bucket(bucket).keys(*(filters or []))), as_json)


@app.command()
@connect.options
def get(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    key: Key,
    revision: Annotated[int | None, typer.Option(min=1, help="Value at this revision.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the value.")] = False,
    as_json: Json = False,
) -> None:
    """Print a key's value. Exits with 1 if there is none."""
    entry = connect.call(nats, lambda natty: natty.bucket(bucket).get(key, revision=revision))
    if raw:
        write(entry.value)
    elif as_json:
        print(_json(bucket, entry))
    else:
        say(f"{bucket} > {key}, revision {entry.revision}, {_time(entry)}", "")
        write(entry.value + b"\n")


@app.command()
@connect.options
def put(
    *, nats: dict[str, Any], bucket: BucketName, key: Key, value: Value = None, ttl: Ttl = None, as_json: Json = False
) -> None:
    """Store a value; print its revision."""
    content = _value(value)
    _show_revision(connect.call(nats, lambda natty: natty.bucket(bucket).put(key, content, ttl=ttl)), as_json)


@app.command()
@connect.options
def create(
    *, nats: dict[str, Any], bucket: BucketName, key: Key, value: Value = None, ttl: Ttl = None, as_json: Json = False
) -> None:
    """Store the value of a new key. Exits with 1 if the key exists."""
    content = _value(value)
    _show_revision(connect.call(nats, lambda natty: natty.bucket(bucket).create(key, content, ttl=ttl)), as_json)


@app.command()
@connect.options
def update(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    key: Key,
    value: Value = None,
    revision: Annotated[int, typer.Option(min=1, help="The revision that the key must have.")],
    ttl: Ttl = None,
    as_json: Json = False,
) -> None:
    """Store a value if the key is still at a revision. Exits with 1 if it is not."""
    content = _value(value)
    made = connect.call(nats, lambda natty: natty.bucket(bucket).update(key, content, revision=revision, ttl=ttl))
    _show_revision(made, as_json)


@app.command()
@connect.options
def revert(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    key: Key,
    revision: Annotated[int, typer.Argument(min=1, help="A revision that `natty kv history` shows.")],
    as_json: Json = False,
) -> None:
    """Restore the value of a key at an earlier revision. Fails if the key changes meanwhile."""
    _show_revision(connect.call(nats, lambda natty: _revert(natty.bucket(bucket), key, revision)), as_json)


@app.command("del")
@app.command("rm")
@connect.options
def delete(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    key: Annotated[
        str, typer.Argument(help="The key; without it, the whole bucket is deleted.", autocompletion=completion.keys)
    ] = "",
    revision: Revision = None,
    force: Force = False,
) -> None:
    """Delete a key but keep its history, or delete a bucket with all its keys."""
    if revision is not None and not key:
        raise typer.BadParameter("a bucket has no revision: give the key", param_hint="--revision")
    status = connect.call(nats, lambda natty: natty.bucket(bucket).status())
    whole = f"bucket {bucket} with {write_count(status['values'], 'value')}"
    confirm(f"Delete {f'key {key} of bucket {bucket}' if key else whole}?", force=force)
    if key:
        connect.call(nats, lambda natty: natty.bucket(bucket).delete(key, revision=revision))
    else:
        connect.call(nats, lambda natty: natty.delete_bucket(bucket))
    say(f"deleted {key} of {bucket}" if key else f"deleted {bucket}")


@app.command()
@connect.options
def purge(
    *, nats: dict[str, Any], bucket: BucketName, key: Key, revision: Revision = None, force: Force = False
) -> None:
    """Delete a key with its history."""
    connect.call(nats, lambda natty: natty.bucket(bucket).status())
    confirm(f"Delete key {key} of bucket {bucket} with its history?", force=force)
    connect.call(nats, lambda natty: natty.bucket(bucket).purge(key, revision=revision))
    say(f"purged {key} of {bucket}")


@app.command()
@connect.options
def history(*, nats: dict[str, Any], bucket: BucketName, key: Key, as_json: Json = False) -> None:
    """List the stored values of a key, oldest first."""
    story = connect.call(nats, lambda natty: natty.bucket(bucket).history(key))
    if as_json:
        _show_lines([_fields(bucket, event) for event in story], as_json)
        return
    rows = []
    for event in story:
        size = len(event.value) if isinstance(event, Entry) else ""
        rows.append((event.revision, _operation(event), _time(event), size, _text(event)))
    print_table((">revision", "operation", "time", ">bytes", "value"), rows)


@app.command()
@connect.options
def watch(
    *,
    nats: dict[str, Any],
    bucket: BucketName,
    filters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys; wildcards are allowed.", autocompletion=completion.keys),
    ] = None,
    with_history: Annotated[bool, typer.Option("--history", help="Start with all stored values.")] = False,
    updates_only: Annotated[bool, typer.Option("--updates-only", help="Print only new writes.")] = False,
    ignore_deletes: Annotated[bool, typer.Option("--ignore-deletes", help="Leave out deleted keys.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Number of lines to print.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print keys as they change, until interrupted: first the existing ones, then every write."""
    if with_history and updates_only:
        raise typer.BadParameter("--history and --updates-only contradict each other", param_hint="--history")
    options = {"history": with_history, "updates_only": updates_only, "ignore_deletes": ignore_deletes}
    connect.call(nats, lambda natty: _watch(natty.bucket(bucket), filters or [], options, count, as_json=as_json))


@app.command()
@connect.options
def status(*, nats: dict[str, Any], bucket: BucketName, as_json: Json = False) -> None:
    """Show a bucket's settings and contents."""
    _show_status(connect.call(nats, lambda natty: natty.bucket(bucket).status()), as_json)


async def _add(natty: Natty, name: str, settings: dict[str, Any]) -> BucketStatus:
    return await (await natty.create_bucket(name, **settings)).status()


async def _revert(bucket: Bucket, key: str, revision: int) -> int:
    value = (await bucket.get(key, revision=revision)).value
    try:
        current = await bucket.get(key)
    except KeyNotFoundError:
        return await bucket.create(key, value)
    return await bucket.update(key, value, revision=current.revision)


async def _watch(
    bucket: Bucket, filters: list[str], options: dict[str, Any], count: int | None, *, as_json: bool
) -> None:
    shown, name = 0, bucket.name
    async with aclosing(bucket.watch(*filters, **options).__aiter__()) as events:
        async for event in events:
            if isinstance(event, PictureComplete):
                print(f"{write_count(event.keys, 'key')}; watching {name}", file=sys.stderr, flush=True)
                continue
            line = f"[{_time(event)}] {_operation(event)} {name} > {event.key}: {_text(event)}"
            say(_json(name, event) if as_json else line)
            shown += 1
            if shown == count:
                return


def _value(given: str | None) -> bytes:
    return sys.stdin.buffer.read() if given is None else given.encode()


def _show_lines(lines: list[Any], as_json: bool) -> None:
    if as_json:
        print(json_text(lines))
    else:
        say(*lines)


def _show_revision(revision: int, as_json: bool) -> None:
    print(json.dumps({"revision": revision}) if as_json else revision)


def _show_status(status: BucketStatus, as_json: bool) -> None:
    if as_json:
        print(json_text(status))
    else:
        print_pairs((f"{name}:", value) for name, value in status.items())


def _operation(event: Entry | Gone) -> str:
    return "PUT" if isinstance(event, Entry) else event.reason.upper()


def _time(event: Entry | Gone) -> str:
    if not event.time_ns:
        return "-"
    return datetime.fromtimestamp(event.time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _text(event: Entry | Gone) -> str:
    return event.value.decode("utf-8", "backslashreplace") if isinstance(event, Entry) else ""


def _fields(bucket: str, event: Entry | Gone) -> dict[str, Any]:
    fields = {"bucket": bucket, "key": event.key, "revision": event.revision, "time": _time(event)}
    fields["operation"] = _operation(event)
    if isinstance(event, Gone):
        return fields
    try:
        return fields | {"value": event.value.decode()}
    except UnicodeDecodeError:
        return fields | {"value_base64": base64.b64encode(event.value).decode()}


def _json(bucket: str, event: Entry | Gone) -> str:
    return json_text(_fields(bucket, event))

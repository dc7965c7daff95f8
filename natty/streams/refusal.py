"""Explains the server's refusals of a stream, with the overlapping stream or the number that is too large."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from natty.config.units import show_size
from natty.errors import JetStreamError, NattyError
from natty.jetstream import JetStream
from natty.names import overlap
from natty.streams.listing import all_streams

NO_PEERS = 10005
_AWAY = ("peer offline", "miscellaneous issue")
"""In the text of NO_PEERS: the server does not see one that it needs, or has not heard of it since it started."""
_NO_MEMORY = 10028
_NO_STORAGE = 10047
_OVERLAP = 10065
_NOT_CLUSTERED = 10074


@asynccontextmanager
async def explaining_refusal(jetstream: JetStream, config: Mapping[str, Any]) -> AsyncIterator[None]:
    """Raise a JetStreamError of the block again, with its cause in the configuration, if that is known."""
    try:
        yield
    except JetStreamError as error:
        text = (
            await _describe_overlap(jetstream, config)
            if error.err_code == _OVERLAP
            else sentence(error.err_code, config, is_away=misses_peers(error))
        )
        if not text:
            raise
        raise type(error)(f"stream {config['name']}: {text}", code=error.code, err_code=error.err_code) from error


def misses_peers(error: JetStreamError) -> bool:
    """Return whether the server refused because it does not see servers that it needs, maybe for a moment."""
    return error.err_code == NO_PEERS and any(text in str(error) for text in _AWAY)


def sentence(err_code: int, config: Mapping[str, Any], *, is_away: bool = False) -> str:
    """Return the text for a refused configuration; empty if the server's own text is the best.

    `is_away`: the server does not see others that it needs.
    """
    size, placement = show_size(max(0, config.get("max_bytes", 0))), config.get("placement") or {}
    if err_code in (_NO_MEMORY, _NO_STORAGE):
        kind = "memory" if err_code == _NO_MEMORY else "storage"
        return f"the server does not have the {kind} that max_bytes {size} reserves; lower max_bytes, or give it more"
    if err_code == _NOT_CLUSTERED:
        return f"num_replicas is {config.get('num_replicas')}, and this server is not in a cluster: use 1"
    if err_code == NO_PEERS:
        wanted = [f"cluster {placement['cluster']}"] if placement.get("cluster") else []
        wanted += [f"tag {tag}" for tag in placement.get("tags") or []]
        where = f" with {', '.join(wanted)}" if wanted else ""
        why = ": others are offline, or have just started" if is_away else ""
        return f"there are not {config.get('num_replicas', 1)} servers{where} that could take it{why}"
    return ""


async def _describe_overlap(jetstream: JetStream, config: Mapping[str, Any]) -> str:
    """Return a text with the overlapping streams; empty if they can't be listed."""
    wanted = config.get("subjects") or [config["name"]]
    try:
        streams = (await all_streams(jetstream)).found
    except NattyError:
        return ""
    clashes = [
        f"{mine} with {theirs} of stream {one['config']['name']}"
        for one in streams
        if one["config"]["name"] != config["name"]
        for theirs in one["config"].get("subjects") or []
        for mine in wanted
        if overlap(mine, theirs)
    ]
    return f"its subjects overlap: {'; '.join(clashes)}" if clashes else ""

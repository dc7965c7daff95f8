"""Several streams in one node: each has its own archive, in a folder below the store."""

from __future__ import annotations

from itertools import combinations

import msgspec

from capture.archive.manifest import quote_key
from capture.config.settings import CaptureConfig, Own
from capture.errors import ConfigError
from capture.stores.address import SCHEMES
from capture.stores.own_store import is_own


def each(config: CaptureConfig) -> list[CaptureConfig]:
    """Return the configuration of each archive: this one, or one for each of `streams`, or only that of `stream`.

    The archive of a stream is stored in `<store>/<stream>`, and has the stream's name, or `<archive>-<stream>`. It has
    no pipelines: these are beside the archives. Raises ConfigError if `stream` is not one of `streams`, or if two have
    one archive.
    """
    tables = config.streams if isinstance(config.streams, dict) else {name: Own() for name in config.streams}
    if not tables:
        return [config]
    if config.stream and config.stream not in tables:
        raise ConfigError(f"stream {config.stream!r} is not one of streams: {', '.join(tables)}")
    made = {name: _of(config, name, table) for name, table in tables.items()}
    for name, other in combinations(made, 2):
        if made[name].name == made[other].name:
            raise ConfigError(
                f"streams {name} and {other} have the same archive, {made[name].name}: each needs one of its own"
            )
    return [made[name] for name in ([config.stream] if config.stream else made)]


def only(config: CaptureConfig) -> CaptureConfig:
    """Return the configuration of the one archive that a command works on. Raises ConfigError if there are several."""
    configs = each(config)
    if len(configs) > 1:
        raise ConfigError(
            f"there are {len(configs)} streams, {', '.join(one.stream for one in configs)}: name one with --stream"
        )
    return configs[0]


def below(store: str, stream: str) -> str:
    """Return the store of a stream's archive: a folder below this store."""
    has_query = is_own(store) or store.partition("://")[0] in SCHEMES
    plain, mark, query = store.partition("?") if has_query else (store, "", "")
    return f"{plain.rstrip('/')}/{quote_key(stream)}{mark}{query}"


def _of(config: CaptureConfig, stream: str, own: Own) -> CaptureConfig:
    said = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
    archive = {"archive": f"{config.archive}-{stream}"} if config.archive else {}
    store = {"store": below(config.store, stream)} if config.store else {}
    return msgspec.structs.replace(config, **archive | said | store, stream=stream, streams=[], pipeline=[])

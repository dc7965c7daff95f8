"""A stream's configuration as the server's own JSON document, durations in nanoseconds: read it, and check it.

The checks cover values that the server would accept and change, or refuse in words that only its developers
understand. Tested on nats-server 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from natty.config.units import NANOSECONDS, show_duration, show_size
from natty.errors import UNREADABLE, ConfigError, NattyError
from natty.names import check_name, check_pattern, overlap
from natty.streams.conversion import check_stream_settings, from_wire

LARGEST_MESSAGE = 2**31 - 1  # bytes: the maximum of the server's field
SHORTEST_AGE = NANOSECONDS // 10
MOST_REPLICAS = 5
_MARK = "_nats."
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size", "max_consumers")

Document = Mapping[str, Any]


def load_document(path: str | Path, *, kind: str = "stream") -> dict[str, Any]:
    """Read a configuration, or the output of `info --json`, JSON. ConfigError says what is wrong with the file."""
    try:
        content = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; check --config") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    config = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(config, dict) or not isinstance(config.get("name", ""), str):
        raise ConfigError(f"{path} is not the configuration of a {kind}: it must be a JSON object with its name")
    return strip_marks(config)


def strip_marks(config: Document) -> dict[str, Any]:
    """Return a configuration without the marks that a server writes into its metadata: each server writes its own."""
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        return dict(config)
    return {**config, "metadata": {name: value for name, value in metadata.items() if not name.startswith(_MARK)}}


def copy_settings(config: Document) -> dict[str, Any]:
    """Return the configuration for a copy of a stream: all but its name, subjects, marks and seal."""
    return {name: value for name, value in strip_marks(config).items() if name not in ("name", "subjects", "sealed")}


def check(config: Document) -> None:
    """ConfigError with all problems of a configuration, in one sentence."""
    if found := list(complaints(config)):
        raise ConfigError("; ".join(found))


def complaints(config: Document) -> Iterator[str]:
    """Yield the problems of a configuration; none if it can be sent to the server."""
    try:
        check_name("stream", config["name"])
        check_stream_settings(from_wire({key: value for key, value in config.items() if key != "name"}), units=False)
    except KeyError:
        yield "the stream has no name"
    except NattyError as error:
        yield str(error)
        return
    for rule in _RULES:
        yield from rule(config)


def _limits(config: Document) -> Iterator[str]:
    for limit in _LIMITS:
        if config.get(limit, 0) < -1:
            yield f"{limit} is {config[limit]}: write a limit, or -1 for none"
    if (largest := config.get("max_msg_size", 0)) > LARGEST_MESSAGE:
        yield f"max_msg_size is {show_size(largest)}, and a server accepts less than 2 GiB"
    elif 0 < config.get("max_bytes", -1) < largest:
        held = show_size(config["max_bytes"])
        yield f"max_bytes is {held}, less than one message of max_msg_size {show_size(largest)}"
    if not 0 <= config.get("num_replicas", 1) <= MOST_REPLICAS:
        yield f"num_replicas is {config['num_replicas']}: write 1 to {MOST_REPLICAS}, best an odd number"


def _ages(config: Document) -> Iterator[str]:
    age, window = config.get("max_age", 0), config.get("duplicate_window", 0)
    if age < 0 or 0 < age < SHORTEST_AGE:
        yield f"max_age is {show_duration(age / NANOSECONDS)}: the shortest is 100ms, and 0 is none"
    if 0 < age < window:
        spans = show_duration(window / NANOSECONDS), show_duration(age / NANOSECONDS)
        yield f"duplicate_window is {spans[0]} and max_age {spans[1]}: deleted messages can't be compared"


def _discarding(config: Document) -> Iterator[str]:
    if not config.get("discard_new_per_subject"):
        return
    if config.get("discard") != "new":
        yield "discard_new_per_subject needs discard new"
    if config.get("max_msgs_per_subject", -1) <= 0:
        yield "discard_new_per_subject needs max_msgs_per_subject: that is the limit it applies to"


def _subjects(config: Document) -> Iterator[str]:
    subjects = config.get("subjects") or []
    if subjects and config.get("mirror"):
        yield "a mirror has no subjects: it uses those of the stream that it mirrors"
    for subject in subjects:
        try:
            check_pattern(subject)
        except NattyError as error:
            yield str(error)
            return
    for one, other in combinations(subjects, 2):
        if overlap(one, other):
            yield f"subjects {one} and {other} overlap: the wider one is enough"


def _purging(config: Document) -> Iterator[str]:
    if config.get("deny_purge") and config.get("allow_rollup_hdrs"):
        yield "allow_rollup_hdrs needs purging, and deny_purge forbids it: choose one"


_RULES: tuple[Callable[[Document], Iterator[str]], ...] = (_limits, _ages, _discarding, _subjects, _purging)

"""Chooses a partitioner by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capture.decoders.contract import BY_BATCH
from capture.errors import ConfigError
from capture.partitioners.contract import Partitioner, guard, per_record
from capture.partitioners.decoder import ByDecoder
from capture.partitioners.field import Field
from capture.partitioners.subject import SubjectToken
from capture.partitioners.time import ByTime
from capture.stores.plugin import load_function

KNOWN = ("subject:<token, from 0>", "field:<name>", "time", "decoder")


def partitioner(spec: str) -> Partitioner[Any]:
    """Return the partitioner "subject:1", "field:origin", "time", "decoder", or your own as "module:attribute".

    Your own takes a `Record` and returns its key, which is any hashable object; with `@by_batch` it takes `Records` and
    returns a list of keys. ConfigError if there is none of this name.
    """
    name, _, argument = spec.partition(":")
    if name in _MADE:
        return _MADE[name](argument)
    found = load_function(spec, "partitioner", KNOWN)
    return guard(found) if hasattr(found, BY_BATCH) else per_record(found)


def _subject(argument: str) -> Partitioner[Any]:
    if not argument.isdecimal():
        raise ConfigError(f"subject: needs the number of a token, counted from 0, as in subject:1; not {argument!r}")
    return SubjectToken(int(argument))


def _without_argument(made: Partitioner[Any], name: str, about: str) -> Callable[[str], Partitioner[Any]]:
    def make(argument: str) -> Partitioner[Any]:
        if argument:
            raise ConfigError(f"{name} takes no argument, not {argument!r}; {about}")
        return made

    return make


_MADE: dict[str, Callable[[str], Partitioner[Any]]] = {
    "subject": _subject,
    "field": Field,
    "time": _without_argument(ByTime(), "time", "its interval is the limit of that name"),
    "decoder": _without_argument(ByDecoder(), "decoder", "the key is what your decoder returns"),
}

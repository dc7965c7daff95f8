"""Loads the configuration from flags, variables and the file, and reports errors in it."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from capture.archive.encryption import VARIABLE
from capture.archive.signing import SIGNING_VARIABLE
from capture.config.pipelines import find_faults
from capture.config.provenance import Given, Origin, Place, gather, tree, variable
from capture.config.secrets import check_exposure
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.config.table_lists import take_table_lists
from capture.config.workers import find_worker_faults
from capture.errors import ConfigError, choices, mistake
from capture.ingest.durable import EXPLICIT
from capture.stores import Address, store_url

CONFIG_VARIABLE = "CAPTURE_CONFIG"  # the path of the file
TOKEN_VARIABLE = "CAPTURE_CATALOG_TOKEN"  # the token that clients of `capture catalog serve` present
NEEDED = ("stream", "store")  # settings without a default; a program may give its Node a store instead
RELATED = ("limits", "ack_wait", "max_ack_pending")  # settings that may contradict each other
STORE: Place = ("store",)


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    needs: tuple[str, ...] = ("stream",),
    pipelines: bool = False,
) -> CaptureConfig:
    """Return the configuration: flags, then `CAPTURE_…` variables, then the file, then defaults.

    Flags and variables name settings of the top level, or of a table with a dot (`limits.max_age`,
    `CAPTURE_LIMITS__MAX_AGE`). Raises ConfigError, which names the wrong setting and the file, variable or flag that
    gave it, or one of `needs` that is missing. With `pipelines`, what a pipeline's settings mean is checked, too: that
    parses their SQL.
    """
    given = gather_settings(path, flags, environment=environment)
    check_exposure(path, given)
    config, faults = read(given)
    if wrong := list(faults.values()) or find_missing(config, needs) or contradictions(config, given):
        raise ConfigError(wrong[0])
    if pipelines and config.pipeline and (wrong := find_faults(config, given)):
        raise ConfigError(wrong[0])
    return config


def gather_settings(
    path: Path | None, flags: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] = os.environ
) -> Given:
    """Return the input of `load`: each setting with its origin. Raises ConfigError if the file can't be read."""
    return gather(
        path, flags or {}, environment, reserved={CONFIG_VARIABLE, VARIABLE, SIGNING_VARIABLE, TOKEN_VARIABLE}
    )


def read(given: Given) -> tuple[CaptureConfig, dict[Place, str]]:
    """Return the configuration, and a sentence for each invalid setting, which keeps its default."""
    faults = dict(given.refused)
    values = {place: setting.value for place, setting in given.settings.items()}
    if values.get(STORE, {}) == {} and (parts := given.below(STORE)):
        values = {place: value for place, value in values.items() if place not in parts}
        try:  # convert [store] to one URL, which can be passed to other processes
            values[STORE] = store_url(tree((place, part.value) for place, part in parts.items())["store"])
        except ConfigError as error:
            blamed = next((place for place in parts if f"{place[-1]}`" in str(error)), min(parts))
            origin = parts[blamed].origin
            faults[STORE] = origin.complaint(str(error), _hint(_unknown(blamed), origin))
    take_table_lists(given, values, faults)
    for place, value in values.items():
        try:
            msgspec.convert(tree([(place, value)]), CaptureConfig, strict=False)
        except msgspec.ValidationError as error:
            origin, unknown = given.settings[place].origin, _unknown(place)
            said = mistake(error, choices(CaptureConfig, place))
            faults.setdefault(unknown or place, origin.complaint(said, _hint(unknown, origin)))
    usable = tree((place, value) for place, value in values.items() if not _is_in(place, faults))
    return msgspec.convert(usable, CaptureConfig, strict=False), faults


def find_missing(config: CaptureConfig, needs: tuple[str, ...] = NEEDED) -> list[str]:
    """Return a sentence for each setting without a default that was not given."""
    said = "no {0} is named: give --{0}, CAPTURE_{1} or {0} in capture.toml"
    named = {"stream": config.stream or config.streams}
    return [said.format(name, name.upper()) for name in needs if not named.get(name, getattr(config, name))]


def contradictions(config: CaptureConfig, given: Given) -> list[str]:
    """Return a sentence if the limits contradict each other or the consumer's settings, or a schedule can't be read."""
    try:
        limits = config.limits.limits()
        if not config.is_direct:
            limits.check_consumer(ack_wait=config.ack_wait, max_ack_pending=config.max_ack_pending)
    except ConfigError as error:
        return [given.blame(str(error), *RELATED)]
    try:
        config.compaction.schedule()
    except ConfigError as error:
        return [given.blame(str(error), "compaction")]
    try:
        config.table.catalog.check()
    except ConfigError as error:
        return [given.blame(str(error), "table")]
    if config.encrypted_only and config.compaction.decrypt:
        return [given.blame("encrypted_only refuses the plain table that compaction.decrypt makes", "encrypted_only")]
    try:
        for one in each(config):
            one.consumer()
    except ConfigError as error:
        return [given.blame(str(error), "stream", "streams", "start")]
    if faults := _direct_faults(config):
        return [
            given.blame(fault, "source", "streams", "group", "member", "filter_subjects", "ack") for fault in faults
        ]
    if faults := _group_faults(config):
        return [given.blame(fault, "streams", "group", "member", "filter_subjects") for fault in faults]
    return [given.blame(fault, "workers", "streams", "member", "ack") for fault in find_worker_faults(config)]


def _direct_faults(config: CaptureConfig) -> list[str]:
    faults = []
    for one in each(config):
        given = {"group": one.group, "member": one.member, "filter_subjects": one.filter_subjects}
        given["ack"] = one.ack if one.ack != EXPLICIT else ""
        if one.is_direct and (named := [name for name, value in given.items() if value]):
            faults.append(
                f'source = "direct" reads stream {one.stream} without a consumer, and {named[0]} is for consumers:'
                f' remove {named[0]}, or write source = "consumer"'
            )
    return faults


def _group_faults(config: CaptureConfig) -> list[str]:
    for one in each(config):
        if one.member and not one.group:
            return [f"member {one.member} needs a group: set group, too"]
        if one.group and one.filter_subjects:
            return [f"group {one.group} decides which subjects are captured: remove filter_subjects"]
    return []


def settings(config: msgspec.Struct, table: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the place and the value of every setting, including defaults."""
    for name in config.__struct_fields__:
        place, value = (*table, name), getattr(config, name)
        if isinstance(value, msgspec.Struct):
            yield from settings(value, place)
        else:
            yield place, value


def _is_in(place: Place, places: Container[Place]) -> bool:
    return any(place[:end] in places for end in range(1, len(place) + 1))


def _list_places() -> list[Place]:
    own = [place for place, _ in settings(CaptureConfig()) if place != STORE]
    return own + [(*STORE, name) for name in (*Address.__struct_fields__, "private")]


def _unknown(place: Place) -> Place:
    """Return the place up to the first name that is not a setting or table; () if the place is known."""
    known = _list_places()
    for end in range(1, len(place) + 1):
        if place[: end - 1] in known:  # a table of free names
            break
        if all(one[:end] != place[:end] for one in known):
            return place[:end]
    return ()


def _hint(unknown: Place, origin: Origin) -> str:
    """Return the end of a sentence: the setting that the user may have meant."""
    if not unknown:
        return ""
    *table, name = unknown
    known = _list_places()
    beside = {one[len(table)] for one in known if [*one[: len(table)]] == table}
    elsewhere = [one for one in known if name in (one[-1], "_".join(one))]
    close = elsewhere[:1] or [(*table, one) for one in get_close_matches(name, sorted(beside), 1)]
    if not close:
        return ""
    (meant,) = close
    if origin.kind == "variable":
        return f"; did you mean {variable(meant)}?"
    return f"; did you mean `{meant[-1] if [*meant[:-1]] == table else '.'.join(meant)}`?"

"""The errors of capture, and sentences for invalid settings: msgspec's messages name types and paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

KINDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
WHOLE_NUMBER = "a whole number"
BOUNDS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<place>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_KIND = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND = re.compile(r"Expected `([^`]*)` (>=|<=|>|<) (\S+)")


class CaptureError(Exception):
    """Something went wrong in capture."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or type(self).__name__).strip().splitlines()[0])


class ConfigError(CaptureError):
    """The configuration can't be used."""


class NoArchiveError(ConfigError):
    """There is no archive in this store."""


class NoStatusError(CaptureError):
    """No node has published the status of this archive."""


class OtherStoreError(ConfigError):
    """The archive is in another store."""


class StoreError(CaptureError):
    """The store failed; nothing was acknowledged, so nothing is lost."""


class StoreUnfitError(StoreError):
    """The store does not do what an archive needs: use another one."""


class NotStartedError(CaptureError):
    """The server or the store was not available in time."""


class NotDrainedError(CaptureError):
    """Messages that were read could not be stored before the stop's deadline; they were handed back."""


class StoreFullError(StoreError):
    """The store is full: free space there."""


class StoreUnreadableError(StoreError):
    """The store can't be read or written: check its permissions."""


class WriterError(StoreError):
    """A writer of your own failed; nothing was acknowledged, so nothing is lost."""


class SpillError(CaptureError):
    """The disk of the buffers failed; nothing in them was acknowledged, so nothing is lost."""


class NotAloneError(CaptureError):
    """Another client reads a consumer whose acknowledgements count for all messages before them."""


class AlreadyStoredError(CaptureError):
    """An object with this path exists; it was not changed."""


class NotStoredError(CaptureError):
    """The store has no such object."""


class FencedError(CaptureError):
    """Another leader's term has begun; this commit was refused and nothing changed."""


class ManifestError(CaptureError):
    """The archive's manifest is damaged, or of a newer format than this version reads."""


class NewerFormatError(ManifestError):
    """A document of the archive has a newer format than this version reads: use the version that wrote it."""


class DamagedIndexError(ManifestError):
    """A page of the archive's index is missing or was changed: restore it from a copy of the store."""


class FormatError(CaptureError):
    """An object of the archive is damaged, or of a newer format than this version reads."""


class CipherError(CaptureError):
    """An encrypted object can't be opened with the given keys."""


class KeyMissingError(CipherError):
    """The key that an object is encrypted with was not given, so its content can't be checked."""


class SignatureError(CaptureError):
    """A document of the archive is not signed as required."""


class PurgeRefusedError(CaptureError):
    """The stream can't be purged safely; nothing was deleted."""


class RestoreRefusedError(CaptureError):
    """The stream can't be restored as requested; nothing was written."""


class RestoreError(CaptureError):
    """The restore failed; everything that it had written was removed."""


class QueryError(CaptureError):
    """The query can't be answered."""


class SparkError(CaptureError):
    """Spark could not be started, or a job failed."""


class CompactionError(CaptureError):
    """The output of a compaction does not match its input; nothing was committed."""


class PipelineError(CaptureError):
    """A run of a pipeline failed; its table is as it was.

    `plan` is Spark's plan of its query, if there was one.
    """

    def __init__(self, message: str = "", plan: str = "") -> None:
        super().__init__(message)
        self.plan = plan


class CatalogError(CaptureError):
    """The user's catalog can't be used; the archive is not affected."""


class CatalogAwayError(CatalogError):
    """The user's catalog does not answer."""


class CatalogRefusedError(CatalogError):
    """The user's catalog refuses the request: check the credentials and the permissions there."""


class CatalogUnfitError(CatalogError):
    """The user's catalog can't do what a table of an archive needs."""


class ForeignEntryError(CatalogError):
    """The entry in the user's catalog is not this archive's, or another program has changed it."""


class NotSweptError(CaptureError):
    """The archive has no manifest of this version yet: the sweep's leader writes one."""


class DataLossError(CaptureError):
    """Messages were removed from the stream before they were read."""


def mistake(error: msgspec.ValidationError, among: Sequence[str] = ()) -> str:
    """Return a sentence about the setting whose value is invalid. It shows no value, since that may be a secret.

    `among` are the allowed values, if the setting has a fixed set.
    """
    parts = _AT.fullmatch(str(error))
    what, place = (parts["what"], parts["place"] or "") if parts else (str(error), "")
    if found := _UNKNOWN.fullmatch(what):
        return f"there is no setting `{found[1]}`" + (f" in [{place}]" if place else "")
    if found := _MISSING.fullmatch(what):
        return f"`{found[1]}` is missing" + (f" in [{place}]" if place else "")
    if WHOLE_NUMBER in among and (_KIND.fullmatch(what) or what.startswith("Invalid enum value")):
        return f"`{place}` must be {' or '.join(among)}"
    if found := _KIND.fullmatch(what):
        return f"`{place}` must be {_kinds(found[1])}, not {_kinds(found[2])}"
    if found := _BOUND.fullmatch(what):
        return f"`{place}` must be {_kinds(found[1])} {BOUNDS[found[2]]} {_number(found[3])}"
    if what.startswith("Invalid enum value"):
        named = ", ".join(filter(None, among))  # an empty text is a default: leave the setting out
        return f"`{place}` must be one of {named}" if named else f"`{place}` can't have this value"
    if "out of range" in what.lower():
        return f"`{place}` is too large"
    return f"`{place}`: {what[0].lower()}{what[1:]}" if place else what


def choices(struct: type[msgspec.Struct], place: Sequence[str]) -> tuple[str, ...]:
    """Return the allowed values of a setting, found by its tables and its name; () if it has no fixed set.

    The first one is WHOLE_NUMBER if it may be a number, too.
    """
    kind: Any = struct
    for name in place:
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        kind = get_type_hints(kind).get(name) if is_struct else _of_table(kind)
    kind = _of_table(kind) or kind
    numbers = (WHOLE_NUMBER,) if int in get_args(kind) else ()
    kind = next((one for one in get_args(kind) if get_origin(one) is Literal), kind)  # Literal[…] | None
    return (*numbers, *get_args(kind)) if get_origin(kind) is Literal else ()


def _of_table(kind: Any) -> Any:
    """Return the type of the values in a table of free names; None for other types."""
    tables = [one for one in (kind, *get_args(kind)) if get_origin(one) is dict]
    return get_args(tables[0])[1] if tables else None


def _kinds(types: str) -> str:
    named = [one.strip() for one in types.split("|")]
    return " or ".join(KINDS.get(one, one) for one in named if one != "null" or len(named) == 1)


def _number(text: str) -> str:
    return text if text.lstrip("-").isdecimal() else f"{float(text):.15g}"

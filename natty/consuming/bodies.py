from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from natty.errors import NattyError

Decode = Callable[[bytes], Any]


class BodyError(NattyError):
    """A message's body does not fit what its handler takes."""


def decoder(kind: Any) -> Decode:
    """Return the function that makes a body of this type of a payload; it raises BodyError with what does not fit.

    `bytes` as they are, `str` from UTF-8, a pydantic model by its own validation (pydantic itself is never imported),
    anything else from JSON by msgspec: `dict`, `list`, `Any`, a `msgspec.Struct`, a dataclass, a TypedDict, unions of
    them. TypeError if nothing of the kind can be made of JSON.
    """
    name = getattr(kind, "__name__", str(kind))
    if kind is bytes:
        return bytes
    if kind is str:
        return partial(_read, bytes.decode, name)
    if hasattr(kind, "model_validate_json"):
        return partial(_read, kind.model_validate_json, name)
    if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
        raise TypeError(
            f"a handler can't take {name}: take Message, bytes, str, JSON types, a msgspec.Struct, a dataclass or a"
            " pydantic model"
        )
    return partial(_read, msgspec.json.Decoder(kind).decode, name)


def _read(decode: Decode, name: str, payload: bytes) -> Any:
    try:
        return decode(payload)
    except (ValueError, msgspec.MsgspecError) as error:  # pydantic's and UnicodeDecodeError are ValueErrors
        raise BodyError(f"the body is no {name}: {error}") from error

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from capture.errors import ConfigError


def load(spec: str, what: str, known: Iterable[str]) -> Callable[..., Any]:
    """Return the function that `spec`, "module:attribute", names.

    `what` and `known` are for the ConfigError: what is being chosen, and which names would have done.
    """
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        choices = ", ".join([*known, "module:attribute"])
        raise ConfigError(f"there is no {what} {spec!r}; the known ones are {choices}")
    try:
        found = getattr(import_module(module_name), attribute)
    except Exception as error:  # the user's module: whatever its import raises
        raise ConfigError(f"the {what} {spec!r} can't be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"the {what} {spec!r} is no function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]

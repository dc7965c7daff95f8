"""The user's own code: loads what "module:function" names, and makes the user's objects with it."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from capture.errors import CaptureError, ConfigError
from natty.wire.background import is_cancellation

FAULTS = (Exception, asyncio.CancelledError, GeneratorExit, SystemExit)
"""What a user's function may raise: all but KeyboardInterrupt are faults of that function.

After an `await` of the user's code some of them may concern the task that awaits: see `ends_task`.
"""

_NAME = r"[^\W\d]\w*"
is_plugin = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*").fullmatch
"""Return a match if a text has the form "module:function"."""


def ends_task(error: BaseException) -> bool:
    """Return whether an error after an `await` of the user's code ends the current task; otherwise it is that code's.

    That code may have awaited something of its own that was cancelled, such as a connection of a closed pool.
    """
    return isinstance(error, GeneratorExit) or is_cancellation(error)


def load_function(spec: str, what: str, known: Iterable[str], *, allow_async: bool = False) -> Callable[..., Any]:
    """Return the function that `spec`, "module:attribute", names.

    `what` and `known` are for the ConfigError: what is configured, and the names that are built in. Only with
    `allow_async` it may be a coroutine function.
    """
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        choices = ", ".join([*known, "module:attribute"])
        raise ConfigError(f"there is no {what} {spec!r}; the known ones are {choices}")
    try:
        found = getattr(import_module(module_name), attribute)
    except FAULTS as error:  # importing the user's module may raise anything
        absent = is_missing(module_name, error)
        advice = "; install it as a package, or put its folder into PYTHONPATH" if absent else ""
        raise ConfigError(f"the {what} {spec!r} can't be loaded: {type(error).__name__}: {error}{advice}") from error
    if not callable(found):
        raise ConfigError(f"the {what} {spec!r} is not a function but {type(found).__name__}")
    if inspect.iscoroutinefunction(found) and not allow_async:
        raise ConfigError(f"the {what} {spec!r} is `async def`, and capture does not await it: write a plain function")
    return found  # type: ignore[no-any-return]


def is_missing(module: str, cause: BaseException | None) -> bool:
    """Return whether an import failed because there is no such module, and not because of one that it imports."""
    return isinstance(cause, ModuleNotFoundError) and f"{module}.".startswith(f"{cause.name}.")


def check_not_pythons(spec: str, what: str) -> None:
    """Raise ConfigError if "module:attribute" can't be loaded, or names a function of Python itself, as `os:system`.

    Use it for names in URLs, which others may have written. Functions of other installed packages are not refused.
    """
    made = load_function(spec, what, ())
    homes = [spec.partition(":")[0]]
    if inspect.isroutine(made) or inspect.isclass(made):
        homes.append(made.__module__ or "")
    if not sys.stdlib_module_names.isdisjoint(home.partition(".")[0] for home in homes):
        raise ConfigError(f"the {what} {spec!r} is a part of Python, not a {what}")


def make_plugin(
    spec: str, what: str, *arguments: Any, needs: Iterable[str], settings: Mapping[str, str] | None = None
) -> Any:
    """Call the function that `spec` names with these arguments and settings; return its object.

    ConfigError if it can't be loaded, does not take these arguments, raises, or returns an object without the methods
    or attributes `needs`. An error of ours passes unchanged.
    """
    function, settings = load_function(spec, what, ()), settings or {}
    try:
        inspect.signature(function).bind(*arguments, **settings)
    except (TypeError, ValueError) as error:
        given = ", ".join([*(["the decoder"] if arguments else []), *settings]) or "no arguments"
        raise ConfigError(f"the {what} {spec!r} can't be called with {given}: {error}") from error
    try:
        made = function(*arguments, **settings)
    except CaptureError:
        raise
    except FAULTS as error:
        raise ConfigError(f"the {what} {spec!r} failed: {type(error).__name__}: {error}") from error
    check_has(made, needs, f"the {what} {spec!r} returned")
    return made


def check_has(made: object, needs: Iterable[str], sentence: str) -> None:
    """Raise ConfigError, which begins with the sentence, if the user's object is without one of these names."""
    if missing := [name for name in needs if not hasattr(made, name)]:
        raise ConfigError(f"{sentence} {type(made).__name__}, which has no {', '.join(missing)}")

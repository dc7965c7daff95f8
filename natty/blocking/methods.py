"""Methods of natty as blocking methods: each is declared in one line, and keeps its parameters and types."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from natty.blocking.loop import Loop
from natty.blocking.running import Running
from natty.consuming.consume import Consumption
from natty.consuming.messaging import Responder
from natty.errors import ConnectionClosedError, NotConnectedError, WrongLoopError

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class Facade:
    """An object of natty, and the loop that it runs on."""

    _inner: Any
    _loop: Loop | None = None

    def check(self) -> Loop:
        """Return the loop. NotConnectedError before the client is opened; otherwise raises as `Loop.check`."""
        if self._loop is None:
            raise NotConnectedError("this client was not opened: use `with Natty(...)` or `Natty.connect()`")
        self._loop.check()
        return self._loop


class Method(Generic[P, T]):
    """A coroutine method of natty as a blocking method: same parameters, result and errors."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade, owner: type) -> Callable[P, T]: ...

    def __get__(self, facade: Facade | None, owner: type) -> Self | Callable[P, T]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return facade.check().call(self._method(facade._inner, *args, **kwargs))

        return call


class Iteration(Generic[P, T]):
    """A method of natty that returns an async iterable, as a method that returns an iterator."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterable[T]], begin: str = "") -> None:
        self._method = method
        self.__doc__ = _begin(begin, method.__doc__)

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade, owner: type) -> Callable[P, Iterator[T]]: ...

    def __get__(self, facade: Facade | None, owner: type) -> Self | Callable[P, Iterator[T]]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return _iterate(facade.check(), self._method(facade._inner, *args, **kwargs))

        call.__doc__ = self.__doc__
        return call


def _begin(first: str, doc: str | None) -> str | None:
    """Return a docstring with another first line: that of natty speaks of `await`."""
    _, newline, rest = (doc or "").partition("\n")
    return first + newline + rest if first else doc


def _iterate(loop: Loop, source: AsyncIterable[T]) -> Iterator[T]:
    iterator: Any = source.__aiter__()

    async def step() -> Any:
        return await anext(iterator, _END)

    try:
        while (item := _check(loop).call(step())) is not _END:
            yield item
    finally:
        with suppress(ConnectionClosedError, WrongLoopError):  # it ended with its client
            _check(loop).call(iterator.aclose())


def _check(loop: Loop) -> Loop:
    loop.check()
    return loop


class Start(Generic[P]):
    """A method of natty that returns something to run, as a method that returns a `Running`."""

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Consumption | Responder],
        begin: str,
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        self._method, self._fixed = method, fixed or {}
        self.__doc__ = _begin(begin, method.__doc__)

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade, owner: type) -> Callable[P, Running]: ...

    def __get__(self, facade: Facade | None, owner: type) -> Self | Callable[P, Running]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Running:
            for name, value in self._fixed.items():
                if kwargs.get(name, value) != value:
                    raise ValueError(f"{name}={kwargs[name]!r} has no effect here: run() stops at SIGTERM and Ctrl-C")

            async def make() -> Consumption | Responder:
                return self._method(facade._inner, *args, **{**kwargs, **self._fixed})  # type: ignore[arg-type]

            loop = facade.check()
            return Running(loop, loop.call(make()))

        call.__doc__ = self.__doc__
        return call

"""Users' handlers: their parameters, and how they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from natty.errors import NattyError, ThreadsEndedError
from natty.wire.message import Batch, Message, Sender, Withdraw

SEND_TIMEOUT = 5.0  # seconds that a thread waits for the event loop to send what it settled

Decode = Callable[[bytes], Any]

Handler = Callable[..., Any]
"""A handler of messages: `async def` runs on the event loop, `def` in a thread.

Its first parameter is the message, or the body if it is annotated with a type of body (see `decoder`); then the message
may be the second parameter. With `batch`: a `list[Message]`, or a `Batch`.
"""

Call = Callable[[list[Message]], Awaitable[object]]
"""A handler in the uniform shape that consuming calls: with a list of one message, or of a batch."""


class HandlerTimeoutError(NattyError, TimeoutError):
    """A handler took longer than its timeout."""


class BodyError(NattyError):
    """A message's body does not match its handler's parameter."""


def is_async(handler: Handler) -> bool:
    """Return whether calling the handler returns a coroutine."""
    if isinstance(handler, partial):
        return is_async(handler.func)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def takes_message(handler: Handler) -> bool:
    """Return whether the handler takes only a message."""
    return _kinds(handler) == [Message]


def caller(handler: Handler, *, batch: bool, threads: Executor | None) -> Call:
    """Return a function that calls the handler with messages. TypeError says what is wrong with its parameters.

    A handler that is not a coroutine function is called in `threads`, with the caller's context variables.
    """
    kinds = _kinds(handler)
    call = handler if is_async(handler) else partial(run_in_thread, threads, handler)
    if batch:
        return _batch_caller(call, kinds)
    if kinds == [Message]:
        return lambda messages: call(messages[0])
    if kinds[1:] not in ([], [Message]) or kinds[0] is Message:
        raise TypeError(f"{_name(handler)} takes {_list(kinds)}; a handler takes a Message, a body, or both")
    decode = decoder(kinds[0])
    if len(kinds) == 1:
        return lambda messages: call(decode(messages[0].data))
    return lambda messages: call(decode(messages[0].data), messages[0])


def within(seconds: float, call: Call) -> Call:
    """Return the call with a time limit: after `seconds` it is cancelled and raises HandlerTimeoutError."""

    async def call_in_time(messages: list[Message]) -> None:
        try:
            async with asyncio.timeout(seconds) as limit:
                await call(messages)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HandlerTimeoutError(f"the handler took longer than {seconds:g} s") from error

    return call_in_time


def _batch_caller(call: Handler, kinds: list[Any]) -> Call:
    if kinds == [Batch]:
        return lambda messages: call(_Lot(messages))
    if kinds in ([Message], [list], [list[Message]]):  # no annotation reads as Message
        return lambda messages: call(messages)
    raise TypeError(f"a handler of batches takes a list[Message] or a Batch, not {_list(kinds)}")


def _kinds(handler: Handler) -> list[Any]:
    """Return the types of the parameters to pass; Message for a parameter without annotation."""
    if not callable(handler):
        raise TypeError(f"the handler is {handler!r}; give a function that takes a message")
    function = inspect.unwrap(handler.func if isinstance(handler, partial) else handler)
    if not hasattr(function, "__globals__"):
        function = getattr(function, "__func__", type(function).__call__)
    known = {"Message": Message, "Batch": Batch} | getattr(function, "__globals__", {})
    kinds: list[Any] = []
    for parameter in inspect.signature(handler).parameters.values():
        kind: Any = parameter.annotation
        positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if kinds and (parameter.default is not parameter.empty or parameter.kind is parameter.VAR_POSITIONAL):
            continue
        if not positional and parameter.kind is not parameter.VAR_POSITIONAL:
            continue
        if isinstance(kind, str):
            try:
                kind = eval(kind, known)
            except NameError as error:
                raise TypeError(f"{_name(handler)}: {error}; its annotation is not known in its module") from error
        kinds.append(Message if kind is parameter.empty else kind)
    if not kinds:
        raise TypeError(f"{_name(handler)} takes no parameter: add one for the message")
    return kinds


def _name(handler: Handler) -> str:
    return getattr(handler, "__qualname__", repr(handler))


def _list(kinds: list[Any]) -> str:
    return ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)


def decoder(kind: Any) -> Decode:
    """Return the function that decodes a payload to this type; it raises BodyError with the reason if that fails.

    `bytes` are passed unchanged, `str` is decoded from UTF-8, and a pydantic model by its own validation (natty never
    imports pydantic). All other types are decoded from JSON by msgspec: `dict`, `list`, `Any`, a `msgspec.Struct`, a
    dataclass, a TypedDict, unions of them. TypeError for a type that can't be decoded from JSON.
    """
    name = getattr(kind, "__name__", str(kind))
    if kind is bytes:
        return bytes
    if kind is str:
        return partial(_read, bytes.decode, name)
    if hasattr(kind, "model_validate_json"):
        return partial(_read, kind.model_validate_json, name)
    try:
        held = {*_custom_types(msgspec.inspect.type_info(kind))}
    except NameError as error:
        raise TypeError(f"a handler can't take {name}: {error}") from error
    if held:
        inside = "" if held == {kind} else f", which holds {_list([*held])}"
        raise TypeError(
            f"a handler can't take {name}{inside}: take Message, bytes, str, JSON types, a msgspec.Struct, a dataclass"
            " or a pydantic model"
        )
    return partial(_read, msgspec.json.Decoder(kind).decode, name)


def _custom_types(info: object, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the types in a type that JSON can't be decoded to."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, tuple | list):
        for one in info:
            yield from _custom_types(one, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in info.__struct_fields__:
            yield from _custom_types(getattr(info, name), seen)


def _read(decode: Decode, name: str, payload: bytes) -> Any:
    try:
        return decode(payload)
    except (ValueError, msgspec.MsgspecError) as error:  # pydantic's and UnicodeDecodeError are ValueErrors
        raise BodyError(f"the body is not a valid {name}: {error}") from error


async def run_in_thread(threads: Executor | None, handler: Handler, *arguments: Any) -> Any:
    """Call a plain function in `threads` and return its result. ThreadsEndedError if they take no more work."""
    run = partial(copy_context().run, _call, handler, *arguments)
    try:
        future = asyncio.get_running_loop().run_in_executor(threads, run)
    except RuntimeError as error:
        raise ThreadsEndedError from error
    answer = await future
    return await answer if inspect.isawaitable(answer) else answer  # a plain function that returns a coroutine


def _call(handler: Handler, *arguments: Any) -> Any:
    try:
        return handler(*arguments)
    except StopIteration as error:  # before Python 3.12 no future takes it: its caller would wait forever
        raise RuntimeError(f"{handler!r} raised StopIteration") from error


class _Lot(Batch):
    """A batch whose messages may be settled one by one: each iteration yields the same message objects."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__([message.raw for message in messages])
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)


class FromThreads:
    """A sender for messages whose handler runs in a thread: the event loop sends for it."""

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def send(self, subject: bytes, data: bytes) -> Withdraw | None:
        """Send from any thread; as `Sender.send`."""
        if asyncio._get_running_loop() is self._loop:
            return self._connection.send(subject, data)
        return asyncio.run_coroutine_threadsafe(self._send(subject, data), self._loop).result(SEND_TIMEOUT)

    async def _send(self, subject: bytes, data: bytes) -> Withdraw | None:
        return self._connection.send(subject, data)

    def confirm(self, subject: bytes, data: bytes) -> Awaitable[object] | None:
        """As `Connection.confirm`; in a thread, it returns when the answer has arrived."""
        if asyncio._get_running_loop() is self._loop:
            return self._connection.confirm(subject, data)
        asyncio.run_coroutine_threadsafe(self._confirm(subject, data), self._loop).result()
        return None

    async def _confirm(self, subject: bytes, data: bytes) -> None:
        if (answer := self._connection.confirm(subject, data)) is not None:
            await answer

    async def flush(self) -> None:
        """As `Connection.flush`."""
        await self._connection.flush()

"""natty for programs without an event loop: the same client on its own event loop, in a background thread.

`from natty.blocking import Natty`. Each method is the method of `natty.Natty` with that name, and returns when done.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from natty import client
from natty.config.settings import ConnectionSettings
from natty.consuming.consume import Consumption
from natty.consuming.messaging import Responder
from natty.errors import ConnectionClosedError, NotConnectedError, WrongLoopError
from natty.kv import bucket
from natty.streams import BucketConfig

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._taking = threading.Lock()  # held while work is given to the loop, or is refused from then on
        self._ended = False
        self._running, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="natty blocking", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Loop({'running' if self._thread.is_alive() else 'ended'})"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait())

    async def _wait(self) -> None:
        self._over = asyncio.Event()
        self._running.set()
        await self._over.wait()

    @property
    def is_ours(self) -> bool:
        """Whether the loop runs in this process: a fork has a copy of it that does not."""
        return os.getpid() == self._pid and self._thread.is_alive()

    def check(self) -> None:
        """Raise WrongLoopError or ConnectionClosedError if this thread can't call the client."""
        if os.getpid() != self._pid:
            raise WrongLoopError(
                f"this client was opened in process {self._pid}, before a fork: open another one in this process"
            )
        if threading.current_thread() is self._thread:
            raise WrongLoopError("natty.blocking was called on its own event loop: write this handler with `def`")
        if not self._thread.is_alive():
            raise ConnectionClosedError

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. ConnectionClosedError after `end`."""
        self._running.wait()
        with self._taking:
            if not self._ended:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ConnectionClosedError

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Ctrl-C cancels it, and raises KeyboardInterrupt."""
        running = self.submit(work)
        try:
            return running.result()
        except CancelledError:
            raise ConnectionClosedError from None
        except BaseException:
            running.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop; do nothing if it has ended."""
        if self.is_ours:
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._running.wait()
        with self._taking:
            self._ended = True
        self.call_soon(self._over.set)
        self._thread.join()


class _Facade:
    """An object of natty, and the loop that it runs on."""

    _inner: Any
    _loop: Loop | None = None

    def _check(self) -> Loop:
        """Return the loop. NotConnectedError before the client is opened; otherwise raises as `Loop.check`."""
        if self._loop is None:
            raise NotConnectedError("this client was not opened: use `with Natty(...)` or `Natty.connect()`")
        self._loop.check()
        return self._loop


class _Method(Generic[P, T]):
    """A coroutine method of natty as a blocking method: same parameters, result and errors."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: _Facade, owner: type) -> Callable[P, T]: ...

    def __get__(self, facade: _Facade | None, owner: type) -> Self | Callable[P, T]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return facade._check().call(self._method(facade._inner, *args, **kwargs))

        return call


class _Iteration(Generic[P, T]):
    """A method of natty that returns an async iterable, as a method that returns an iterator."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: _Facade, owner: type) -> Callable[P, Iterator[T]]: ...

    def __get__(self, facade: _Facade | None, owner: type) -> Self | Callable[P, Iterator[T]]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return _iterate(facade._check(), self._method(facade._inner, *args, **kwargs))

        return call


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


class _Start(Generic[P]):
    """A method of natty that returns something to run, as a method that returns a `Running`."""

    def __init__(self, method: Callable[Concatenate[Any, P], Consumption | Responder], **fixed: object) -> None:
        self._method, self._fixed = method, fixed
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: _Facade, owner: type) -> Callable[P, Running]: ...

    def __get__(self, facade: _Facade | None, owner: type) -> Self | Callable[P, Running]:
        if facade is None:
            return self

        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Running:
            async def make() -> Consumption | Responder:
                return self._method(facade._inner, *args, **{**kwargs, **self._fixed})  # type: ignore[arg-type]

            loop = facade._check()
            return Running(loop, loop.call(make()))

        return call


class Running:
    """Running handlers: call `run()` to block until they stop, or use `with` to continue meanwhile. Use it once.

    A `def` handler runs in a thread, and may use the client.
    """

    def __init__(self, loop: Loop, work: Consumption | Responder) -> None:
        self._loop = loop
        self._work = work
        self._future: Future[None] | None = None

    def __repr__(self) -> str:
        return f"Running({self._work!r})"

    def run(self) -> None:
        """Return after `stop` was called, from any thread or handler, and running handlers have finished.

        Ctrl-C stops it in the same way, and then raises KeyboardInterrupt. In the main thread SIGTERM stops it, too,
        unless the program handles it. Raises the errors of `Consumption.run`.
        """
        with _stop_at_sigterm(self.stop):
            running = self._start()
            try:
                running.result()
            except KeyboardInterrupt:
                self.stop()
                running.result()
                raise

    def stop(self) -> None:
        """Take no more messages; running handlers finish. Call it from any thread. Idempotent."""
        self._loop.call_soon(self._work.stop)

    def _start(self) -> Future[None]:
        self._loop.check()
        self._future = self._loop.submit(self._work.run())
        _started[self._future] = self
        self._future.add_done_callback(_started.pop)
        return self._future

    def __enter__(self) -> Self:
        """Start, and return when messages or requests can arrive. Raises the error that prevents it."""
        future = self._start()
        ready = self._loop.submit(self._work.ready.wait())
        both: list[Future[Any]] = [future, ready]
        try:
            wait(both, return_when=FIRST_COMPLETED)
        except BaseException:
            self.stop()
            raise
        finally:
            ready.cancel()
        if future.done():
            future.result()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._future is not None, "__enter__ has made it"
        self.stop()
        if self._loop.is_ours or self._future.done():  # after a fork it would never be
            self._future.result()


_started: dict[Future[None], Running] = {}  # what runs at the moment


def _stop_started() -> None:
    """Stop what runs, and wait until it ends, since Python ends the threads of handlers next."""
    started = {future: running for future, running in list(_started.items()) if running._loop.is_ours}
    for running in started.values():
        running.stop()
    wait(started)


# Called when the main thread ends, before that of `concurrent.futures` (imported earlier) and before `atexit`.
threading._register_atexit(_stop_started)  # type: ignore[attr-defined]


@contextmanager
def _stop_at_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM, in the main thread and unless the program handles it."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Bucket(_Facade):
    """A key-value bucket: `natty.Bucket` with blocking methods; `watch` returns a plain iterator."""

    def __init__(self, loop: Loop, inner: bucket.Bucket) -> None:
        self._loop, self._inner = loop, inner
        self.name, self.stream = inner.name, inner.stream

    def __repr__(self) -> str:
        return repr(self._inner)

    get = _Method(bucket.Bucket.get)
    put = _Method(bucket.Bucket.put)
    create = _Method(bucket.Bucket.create)
    update = _Method(bucket.Bucket.update)
    modify = _Method(bucket.Bucket.modify)
    refresh = _Method(bucket.Bucket.refresh)
    delete = _Method(bucket.Bucket.delete)
    purge = _Method(bucket.Bucket.purge)
    keys = _Method(bucket.Bucket.keys)
    history = _Method(bucket.Bucket.history)
    watch = _Iteration(bucket.Bucket.watch)
    status = _Method(bucket.Bucket.status)


class Natty(_Facade):
    """`natty.Natty` for scripts, Airflow and Spark's drivers: `with Natty(...) as client`, or `Natty.connect(...)`.

    Any number of threads may use it; each call blocks only its own thread. After a fork, open another client in the new
    process: this one raises WrongLoopError there. A client that is still open at the end of the program is closed then.
    """

    def __init__(
        self,
        servers: str | list[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        self._inner: client.Natty = client.Natty(servers, context=context, **settings)
        self._opened = threading.Lock()

    def __repr__(self) -> str:
        return f"blocking {self._inner!r}"

    @classmethod
    def connect(
        cls,
        servers: str | list[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> Self:
        """Connect and return the client: `close` it at the end. Raises the errors of `Connection.open`."""
        return cls(servers, context=context, **settings).__enter__()

    def __enter__(self) -> Self:
        with self._opened:
            if self._loop is None:
                self._loop = Loop()
                atexit.register(self.close)
        self._loop.check()
        try:
            self._loop.call(self._inner.connection.open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client like `natty.Natty.close`, and end its thread. Idempotent; does nothing after a fork.

        RuntimeError if a handler of this client calls it: call `stop` of the `Running` that `consume` returned.
        """
        loop = self._loop
        if loop is None or not loop.is_ours:
            return
        if self._inner.connection.lifetime.is_called_by_its_own:
            raise RuntimeError(
                "a handler can't close its own client: call stop() of the object that consume() returned"
            )
        atexit.unregister(self.close)
        try:
            with suppress(ConnectionClosedError):  # another thread was faster
                loop.call(self._inner.close())
        finally:
            loop.end()

    publish = _Method(client.Natty.publish)
    publish_async = _Method(client.Natty.publish_async)
    publish_errors = _Iteration(client.Natty.publish_errors)
    flush_publishers = _Method(client.Natty.flush_publishers)
    delete_publisher = _Method(client.Natty.delete_publisher)
    publish_atomic = _Method(client.Natty.publish_atomic)
    request = _Method(client.Natty.request)
    subscribe = _Iteration(client.Natty.subscribe)
    """Iterate over messages of core NATS, subscribed with the first one: `for message in client.subscribe("a.*")`."""
    respond = _Start(client.Natty.respond)
    """Answer requests with the result of `handler(message)`: call `run()` of the result, or use `with`."""
    consume = _Start(client.Natty.consume, signals=False)
    """Consume a stream with a durable consumer: call `run()` of the result, or use `with`. Options: `ConsumeSettings`.
    """
    read = _Iteration(client.Natty.read)
    """Read a stream in order, every message once: `for message in client.read("ORDERS")`."""

    create_stream = _Method(client.Natty.create_stream)
    ensure_stream = _Method(client.Natty.ensure_stream)
    delete_stream = _Method(client.Natty.delete_stream)
    purge_stream = _Method(client.Natty.purge_stream)
    stream_info = _Method(client.Natty.stream_info)
    get_message = _Method(client.Natty.get_message)
    delete_message = _Method(client.Natty.delete_message)
    create_consumer = _Method(client.Natty.create_consumer)
    ensure_consumer = _Method(client.Natty.ensure_consumer)
    delete_consumer = _Method(client.Natty.delete_consumer)
    consumer_info = _Method(client.Natty.consumer_info)
    pause_consumer = _Method(client.Natty.pause_consumer)
    resume_consumer = _Method(client.Natty.resume_consumer)

    def bucket(self, name: str) -> Bucket:
        """Return a handle of the bucket. Sends no request."""
        return Bucket(self._check(), self._inner.bucket(name))

    def create_bucket(self, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
        """Create the bucket if it does not exist, and return it. See `natty.Natty.create_bucket`."""
        loop = self._check()
        return Bucket(loop, loop.call(self._inner.create_bucket(bucket, **settings)))

    delete_bucket = _Method(client.Natty.delete_bucket)
    get = _Method(client.Natty.get)
    put = _Method(client.Natty.put)
    create = _Method(client.Natty.create)
    update = _Method(client.Natty.update)
    modify = _Method(client.Natty.modify)
    refresh = _Method(client.Natty.refresh)
    delete = _Method(client.Natty.delete)
    purge = _Method(client.Natty.purge)
    keys = _Method(client.Natty.keys)
    history = _Method(client.Natty.history)
    watch = _Iteration(client.Natty.watch)
    status = _Method(client.Natty.status)

    observe = _Iteration(client.Natty.observe)
    step_down = _Method(client.Natty.step_down)
    get_leader = _Method(client.Natty.get_leader)
    have_leader = _Method(client.Natty.have_leader)

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
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from natty import client
from natty.config.settings import ConnectionSettings
from natty.consuming.consume import Consumption
from natty.consuming.messaging import Responder
from natty.errors import ConnectionClosedError, WrongLoopError
from natty.kv import bucket
from natty.streams import BucketConfig

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
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
        """Start a coroutine on the loop."""
        self._running.wait()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

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

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._running.wait()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class _Facade:
    """An object of natty, and the loop that it runs on."""

    _inner: Any
    _loop: Loop


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
            facade._loop.check()
            return facade._loop.call(self._method(facade._inner, *args, **kwargs))

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
            facade._loop.check()
            return _iterate(facade._loop, self._method(facade._inner, *args, **kwargs))

        return call


def _iterate(loop: Loop, source: AsyncIterable[T]) -> Iterator[T]:
    iterator: Any = source.__aiter__()

    async def step() -> Any:
        return await anext(iterator, _END)

    try:
        while (item := _check(loop).call(step())) is not _END:
            yield item
    finally:
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

            return Running(_check(facade._loop), facade._loop.call(make()))

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
        self._loop.check()
        with _stop_at_sigterm(self.stop):
            running = self._loop.submit(self._work.run())
            try:
                running.result()
            except KeyboardInterrupt:
                self.stop()
                running.result()
                raise

    def stop(self) -> None:
        """Take no more messages; running handlers finish. Call it from any thread. Idempotent."""
        self._work.stop()

    def __enter__(self) -> Self:
        self._loop.check()
        self._future = self._loop.submit(self._work.run())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._future is not None, "__enter__ has made it"
        self.stop()
        self._future.result()


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
            if not hasattr(self, "_loop"):
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
        loop = getattr(self, "_loop", None)
        if loop is None or not loop._thread.is_alive() or os.getpid() != loop._pid:
            return
        if self._inner.connection.lifetime.is_called_by_its_own:
            raise RuntimeError(
                "a handler can't close its own client: call stop() of the object that consume() returned"
            )
        atexit.unregister(self.close)
        try:
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
        return Bucket(_check(self._loop), self._inner.bucket(name))

    def create_bucket(self, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
        """Create the bucket if it does not exist, and return it. See `natty.Natty.create_bucket`."""
        return Bucket(_check(self._loop), self._loop.call(self._inner.create_bucket(bucket, **settings)))

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

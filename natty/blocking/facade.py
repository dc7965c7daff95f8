"""The blocking client, and its buckets."""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Self, Unpack

from natty import client
from natty.blocking.loop import Loop
from natty.blocking.methods import Facade, Iteration, Method, Start
from natty.config.settings import ConnectionSettings
from natty.consuming.handler import run_in_thread
from natty.errors import ConnectionClosedError, PublishError
from natty.kv import bucket
from natty.publishing.outbox import Callback
from natty.streams import BucketConfig, schedules


class Bucket(Facade):
    """A key-value bucket: `natty.Bucket` with blocking methods; `watch` returns a plain iterator."""

    def __init__(self, loop: Loop, inner: bucket.Bucket) -> None:
        self._loop, self._inner = loop, inner
        self.name, self.stream = inner.name, inner.stream

    def __repr__(self) -> str:
        return repr(self._inner)

    get = Method(bucket.Bucket.get)
    put = Method(bucket.Bucket.put)
    create = Method(bucket.Bucket.create)
    update = Method(bucket.Bucket.update)
    modify = Method(bucket.Bucket.modify)
    refresh = Method(bucket.Bucket.refresh)
    delete = Method(bucket.Bucket.delete)
    purge = Method(bucket.Bucket.purge)
    keys = Method(bucket.Bucket.keys)
    history = Method(bucket.Bucket.history)
    watch = Iteration(bucket.Bucket.watch)
    status = Method(bucket.Bucket.status)


class Scheduler(Facade):
    """What waits to be published later: `natty.Scheduler` with blocking methods; `list` returns a plain iterator."""

    def __init__(self, loop: Loop | None, inner: schedules.Scheduler) -> None:
        self._loop, self._inner = loop, inner

    def __repr__(self) -> str:
        return repr(self._inner)

    put = Method(schedules.Scheduler.put)
    list = Iteration(schedules.Scheduler.list)
    get = Method(schedules.Scheduler.get)
    cancel = Method(schedules.Scheduler.cancel)


class Natty(Facade):
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

    if not TYPE_CHECKING:  # type checkers know which names there are

        def __getattr__(self, name):
            text = f"natty.blocking.Natty has no {name!r}"
            if hasattr(client.Natty, name) or name in ("connection", "jetstream"):
                text += ": use natty.Natty for it, within asyncio.run(...)"
            raise AttributeError(text)

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

        RuntimeError if a handler of this client calls it: call `stop` of the `Running` that `consume` returned. So it
        does in `on_publish_error`: let the program's own thread close the client.
        """
        loop = self._loop
        if loop is None or not loop.is_ours:
            return
        if self._inner.connection.lifetime.is_called_by_its_own:
            raise RuntimeError(
                "a handler can't close its own client: call stop() of the object that consume() returned"
            )
        if self._inner.outbox.errors.is_called_by_its_own:
            raise RuntimeError("on_publish_error can't close its own client: return, and let the program close it")
        atexit.unregister(self.close)
        try:
            with suppress(ConnectionClosedError):  # another thread was faster
                loop.call(self._inner.close())
        finally:
            loop.end()

    publish = Method(client.Natty.publish)
    schedule = Method(client.Natty.schedule)
    publish_async = Method(client.Natty.publish_async)

    def on_publish_error(self, callback: Callback) -> Callback:
        """Call `callback(error)` in a thread for every message of `publish_async` that is not stored, one by one.

        It may use the client, except `close`. If it raises or takes longer than 10 s, the error is kept for
        `publish_errors`.
        """
        threads = ThreadPoolExecutor(1, "natty on_publish_error")  # a call that hangs must not keep others' threads

        async def call(error: PublishError) -> None:
            await run_in_thread(threads, callback, error)

        async def begin() -> None:
            self._inner.on_publish_error(call)

        self.check().call(begin())
        return callback

    publish_errors = Iteration(client.Natty.publish_errors)
    flush_publishers = Method(client.Natty.flush_publishers)
    delete_publisher = Method(client.Natty.delete_publisher)
    publish_atomic = Method(client.Natty.publish_atomic)
    request = Method(client.Natty.request)
    subscribe = Iteration(
        client.Natty.subscribe,
        'Iterate over messages of core NATS, subscribed with the first one: `for message in client.subscribe("a.*")`.',
    )
    respond = Start(
        client.Natty.respond,
        "Answer requests with the result of `handler(message)`: call `run()` of the result, or use `with`.",
    )
    consume = Start(
        client.Natty.consume,
        "Consume a stream with a durable consumer: call `run()` of the result, or use `with`.",
        {"signals": False},
    )
    read = Iteration(
        client.Natty.read, 'Read a stream in order, every message once: `for message in client.read("ORDERS")`.'
    )

    create_stream = Method(client.Natty.create_stream)
    ensure_stream = Method(client.Natty.ensure_stream)
    delete_stream = Method(client.Natty.delete_stream)
    purge_stream = Method(client.Natty.purge_stream)
    stream_info = Method(client.Natty.stream_info)
    get_message = Method(client.Natty.get_message)
    delete_message = Method(client.Natty.delete_message)
    create_consumer = Method(client.Natty.create_consumer)
    ensure_consumer = Method(client.Natty.ensure_consumer)
    delete_consumer = Method(client.Natty.delete_consumer)
    consumer_info = Method(client.Natty.consumer_info)
    pause_consumer = Method(client.Natty.pause_consumer)
    resume_consumer = Method(client.Natty.resume_consumer)

    @property
    def scheduler(self) -> Scheduler:
        """What waits to be published later: `list`, `get`, `cancel`."""
        return Scheduler(self._loop, self._inner.scheduler)

    def bucket(self, name: str) -> Bucket:
        """Return a handle of the bucket. Sends no request."""
        return Bucket(self.check(), self._inner.bucket(name))

    def create_bucket(self, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
        """Create the bucket if it does not exist, and return it. See `natty.Natty.create_bucket`."""
        loop = self.check()
        return Bucket(loop, loop.call(self._inner.create_bucket(bucket, **settings)))

    delete_bucket = Method(client.Natty.delete_bucket)
    get = Method(client.Natty.get)
    put = Method(client.Natty.put)
    create = Method(client.Natty.create)
    update = Method(client.Natty.update)
    modify = Method(client.Natty.modify)
    refresh = Method(client.Natty.refresh)
    delete = Method(client.Natty.delete)
    purge = Method(client.Natty.purge)
    keys = Method(client.Natty.keys)
    history = Method(client.Natty.history)
    watch = Iteration(client.Natty.watch)
    status = Method(client.Natty.status)

    observe = Iteration(client.Natty.observe)
    step_down = Method(client.Natty.step_down)
    get_leader = Method(client.Natty.get_leader)
    have_leader = Method(client.Natty.have_leader)

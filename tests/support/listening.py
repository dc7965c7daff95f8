"""A listener on the loopback that ends all its connections when it ends."""

import asyncio
import contextlib

from patient import PATIENCE


@contextlib.asynccontextmanager
async def listening(handle, host="127.0.0.1", port=0, *, drain=False, **options):
    """Serve with a function or a coroutine function of (reader, writer); yield the port.

    When the block ends, it aborts every connection, including those whose handler has not begun; with `drain` it first
    waits until they end. It ignores errors that handlers raise when their clients disconnect.
    """
    tasks, writers = set(), set()

    async def served(handling):
        with contextlib.suppress(OSError):
            await handling

    def accepted(reader, writer):  # called at once for each connection; a coroutine may be cancelled before it begins
        writers.add(writer)
        if asyncio.iscoroutine(handling := handle(reader, writer)):
            tasks.add(asyncio.ensure_future(served(handling)))

    server = await asyncio.start_server(accepted, host, port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(5):  # accepted sockets become connections in one of the loop's next iterations
            await asyncio.sleep(0)
        if drain:
            await asyncio.wait(tasks, timeout=PATIENCE) if tasks else None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)

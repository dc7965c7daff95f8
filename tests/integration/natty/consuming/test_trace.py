"""How many files of natty a message passes, from the bytes on the socket to the ack that is written."""

import asyncio
import threading

import pytest
from consuming import until
from entering import entered
from patient import PATIENCE

import natty as package
from natty import Natty

MOST_FILES = 6


@pytest.fixture
def elsewhere(nats_server):
    """Return how to publish from an event loop in another thread; this one stands still meanwhile."""
    loop, client = asyncio.new_event_loop(), Natty(**nats_server.connect_options())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE)

    async def opened():
        await client.__aenter__()

    run(opened())
    yield lambda subject: run(client.publish(subject, b"x"))
    run(client.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("options", [{}, {"concurrency": 10, "ordered_by": lambda message: message.raw[0]}])
async def test_a_message_passes_few_files_from_the_socket_to_its_ack(natty, natty_name, elsewhere, start, options):
    stream, seen = natty_name("TRACE"), []
    await natty.create_stream(stream, subjects=[f"{stream}.*"])

    async def handle(message):
        seen.append(message)

    consumption, _ = start(stream, handle, dead_letters=False, **options)
    for number in range(20):
        await natty.publish(f"{stream}.{number}", b"warm")
    await until(lambda: consumption.handled == 20)

    traces = []
    for _ in range(5):
        before = len(seen)
        elsewhere(f"{stream}.traced")
        with entered(package) as files:
            while len(seen) == before or consumption._pull._credit.held_messages:
                await asyncio.sleep(0)
        traces.append(files)
    shortest = min(traces, key=len)  # a timer may go off during one of them
    assert {"natty/wire/session.py", "natty/consuming/work.py"} <= shortest
    assert len(shortest) <= MOST_FILES, sorted(shortest)
    assert consumption.handled == 25

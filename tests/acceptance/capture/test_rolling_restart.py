"""Four consumers, each replaced by a new one in turn while messages keep coming."""

import asyncio
import signal
import sys
from collections import Counter

from patient import NEVER, PATIENCE, PATIENT

WORKERS, CONCURRENCY, MAX_MESSAGES = 4, 10, 50
BACKLOG = 1000  # messages that always wait, so that every process is stopped in the middle of its work
BETWEEN = 500  # messages handled between two restarts
IN_FLIGHT = WORKERS * MAX_MESSAGES  # what the processes that were stopped can have had, all together
SCRIPT = f"""
import asyncio, os, sys
from natty import Message, Natty
from natty.consuming import consume
from natty.pulling import pull as pulling
from natty.wire import connection

connection.CLOSE_TIMEOUT = consume.FLUSH_TIMEOUT = pulling.DRAIN_TIMEOUT = {PATIENCE}

async def main(stream, notes):
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(message: Message):
        await asyncio.sleep(0.02)
        os.write(file, b"%d %d %d\\n" % (os.getpid(), message.sequence, message.deliveries))

    async with Natty(**{PATIENT}) as natty:
        options = dict(concurrency={CONCURRENCY}, max_messages={MAX_MESSAGES}, shutdown_timeout={NEVER})
        await natty.consume(stream, "d", handle, **options)

asyncio.run(main(*sys.argv[1:]))
"""


class Load:
    """Publishes so that there is always a backlog; reads what the consumers noted."""

    def __init__(self, natty, stream, notes):
        self.natty, self.stream, self.notes = natty, stream, notes
        self.published = 0
        self.over = False

    @property
    def handled(self):
        return self.notes.read_bytes().count(b"\n") if self.notes.exists() else 0

    def lines(self):
        """Return what was noted: (process, sequence, deliveries)."""
        text = self.notes.read_text() if self.notes.exists() else ""
        return [tuple(map(int, line.split())) for line in text.splitlines()]

    async def run(self):
        async with self.natty.publisher(self.stream, ack_timeout=PATIENCE) as publisher:
            while not self.over:
                while self.published < self.handled + BACKLOG + IN_FLIGHT:
                    self.published += 1
                    await publisher.publish(f"{self.stream}.eu", b"%d" % self.published)
                await publisher.flush()
                await asyncio.sleep(0.01)

    async def until_handled(self, count):
        async with asyncio.timeout(PATIENCE):
            while self.handled < count:
                await asyncio.sleep(0.02)

    async def until_handled_by(self, processes):
        async with asyncio.timeout(PATIENCE):
            while not processes <= {process for process, _, _ in self.lines()}:
                await asyncio.sleep(0.02)

    async def until_settled(self):
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await self.natty.jetstream.request(f"CONSUMER.INFO.{self.stream}.d")
                if not state["num_pending"] and not state["num_ack_pending"]:
                    return
                await asyncio.sleep(0.05)


async def test_a_rolling_restart_under_load_loses_nothing_and_repeats_at_most_what_was_in_flight(
    shell, natty, natty_name, tmp_path
):
    load = Load(natty, natty_name("ROLLING"), tmp_path / "handled")
    await natty.create_stream(load.stream, subjects=[f"{load.stream}.>"])
    await natty.create_consumer(load.stream, "d", ack_wait=NEVER)  # what is not handed back comes too late

    def start():
        return shell.execute([sys.executable, "-c", SCRIPT, load.stream, load.notes])

    old = [start() for _ in range(WORKERS)]
    publishing = asyncio.create_task(load.run())
    await load.until_handled_by({process.pid for process in old})
    await load.until_handled(BETWEEN)
    for process in old:
        start()
        process.send_signal(signal.SIGTERM)
        done = await asyncio.to_thread(shell.finish, process)
        assert (done.status, done.err) == (0, "")
        await load.until_handled(load.handled + BETWEEN)
    load.over = True
    await publishing
    await load.until_settled()
    lines = load.lines()
    times = Counter(sequence for _, sequence, _ in lines)
    again = sum(deliveries > 1 for _, _, deliveries in lines)
    twice = sum(count - 1 for count in times.values())
    print(
        f"{WORKERS} restarts, {load.published} messages: {again} of {IN_FLIGHT} in flight came again, {twice} ran twice"
    )
    assert sorted(times) == list(range(1, load.published + 1))
    assert 0 < again <= IN_FLIGHT
    assert twice <= WORKERS * CONCURRENCY

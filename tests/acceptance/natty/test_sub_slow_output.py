"""`natty sub` before an output that is slower than the subject: bounded memory, and what is dropped is told."""

import asyncio
import re
import signal
import threading
import time
from pathlib import Path

from patient import PATIENCE

PAYLOAD = bytes(10_000)
BUFFERED = 32 * 1024 * 1024  # bytes that `natty sub` may hold
SLACK = 32 * 1024 * 1024  # what else a process may grow by: a fifth of what it is sent
DROPPED = 12_000  # messages to be dropped: 120 MB
TOLD = re.compile(r"(\d+) of (\d+) messages were dropped, because the output is slower than the subject")


def peak_memory(process):
    """Return the most that a process has held, in bytes."""
    (line,) = (one for one in Path(f"/proc/{process.pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Subscriber:
    """`natty sub` as a process that is flooded, and what it says on standard error."""

    def __init__(self, shell, subject, *arguments):
        self.subject = subject
        self.process = shell.start("natty", "sub", subject, *arguments)
        self.said = [self.process.stderr.readline()]
        assert self.said == [f"subscribed to {subject}\n"]
        self.published = 0

    async def publish(self, natty, count, payload=PAYLOAD):
        for _ in range(count):
            natty.connection.send(self.subject, payload)
        self.published += count
        await natty.connection.flush()

    async def flooded(self, natty):
        """Publish until enough is dropped, as it says while its output stands still."""
        reading = asyncio.create_task(asyncio.to_thread(self._until_dropped))
        while not reading.done():
            await self.publish(natty, 200)
        await reading

    def _until_dropped(self):
        for line in self.process.stderr:
            self.said.append(line)
            if (told := TOLD.match(line)) and int(told[1]) >= DROPPED:
                return
        raise AssertionError(f"it ended: {self.said}")

    def interrupted(self):
        """Interrupt it; return (dropped messages, all that arrived), as it told last."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE) == 130
        *told, end = [*self.said[1:], *self.process.stderr]
        assert end == "natty: interrupted\n"
        assert not [line for line in told if not TOLD.match(line)]  # nor was a connection lost
        return tuple(map(int, TOLD.match(told[-1]).groups()))


def test_an_output_that_nobody_reads_does_not_fill_the_memory(shell, natty_name, served):
    subscriber = Subscriber(shell, natty_name("flood"), "--raw")
    before = peak_memory(subscriber.process)
    served(subscriber.flooded)
    grown = peak_memory(subscriber.process) - before
    sent = subscriber.published * len(PAYLOAD)
    print(f"\ngrown by {grown >> 20} MiB, was sent {sent >> 20} MiB")
    assert sent > 2 * (BUFFERED + SLACK)
    assert grown < BUFFERED + SLACK
    began = time.monotonic()
    dropped, arrived = subscriber.interrupted()
    print(f"ended {time.monotonic() - began:.1f} s after the interrupt, {dropped} of {arrived} dropped")
    assert DROPPED <= dropped <= arrived <= subscriber.published


def test_an_output_that_is_read_again_goes_on_and_every_message_is_printed_or_counted(shell, natty_name, served):
    subscriber = Subscriber(shell, natty_name("late"))
    numbers, ended = [], threading.Event()

    def read():
        for line in subscriber.process.stdout:
            if head := re.match(r"\[#(\d+)\] Received on ", line):
                numbers.append(int(head[1]))
            elif line == "end\n":
                ended.set()

    reader = threading.Thread(target=read)

    async def work(natty):
        await subscriber.flooded(natty)
        flood = subscriber.published
        reader.start()
        async with asyncio.timeout(PATIENCE):
            while not ended.is_set():
                await subscriber.publish(natty, 1, b"end")
                await asyncio.sleep(0.05)
        assert numbers[-1] > flood

    served(work)
    dropped, arrived = subscriber.interrupted()
    reader.join()
    assert numbers == sorted(numbers)
    assert numbers[:100] == list(range(1, 101))
    assert numbers[-1] <= arrived == len(numbers) + dropped <= subscriber.published


def test_a_count_is_of_printed_messages(shell, natty_name, served):
    subscriber = Subscriber(shell, natty_name("count"), "--raw", "--count", "300")

    async def work(natty):
        await subscriber.publish(natty, 400, bytes(1000))

    served(work)
    process = subscriber.process
    assert process.poll() is None  # it has more to print than a pipe takes
    done = shell.finish(process)
    assert (done.status, done.out, done.err) == (0, (bytes(1000).decode() + "\n") * 300, "")


def test_an_output_that_is_closed_ends_it(shell, natty_name, served):
    subscriber = Subscriber(shell, natty_name("closed"), "--raw")
    subscriber.process.stdout.close()

    async def work(natty):
        await subscriber.publish(natty, 1)

    served(work)
    assert subscriber.process.wait(PATIENCE) == 1
    assert subscriber.process.stderr.read() == ""

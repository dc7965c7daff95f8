"""An instance of a group's member as a separate process: it writes a line for each event of its handlers.

    python group_node.py <JSON: connection settings, stream, group, member ("" for an automatic one), options, log>

A message's payload is `<key> <number>`. Lines: a letter, nanoseconds of the monotonic clock, and for S (a handler
began), E (it succeeded) and C (it was cut short) the key and the number. P: the process was paused until then, for this
many nanoseconds. O: the total number of handlers that overran their lease. L: it lost pin or consumer. F: the server
has all acks from before the time that follows. After SIGTERM it leaves. With `forgetful` it never sends one ack of ten:
the judge has to detect the consequences.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time

from natty import Natty, NattyError
from natty.consuming.shutdown import stop_on_signals

BEAT = 0.05  # seconds
CONFIRM = 0.05  # seconds between two looks whether the server has our acks
HELD = ("active", "taking over")


def lossy(say):
    """Return a listener for a member's events that reports when the member lost messages without a hand-over."""
    before = ["joining"]

    def hear(event):
        if event.kind == "partitions":
            return
        if before[0] in HELD and event.kind not in (*HELD, "handing over"):
            say("L", event.kind)
        before[0] = event.kind

    return hear


def forget_some_acks(work):
    succeed, times = work._succeed, itertools.count(1)

    def forgetful(turns):
        for turn in turns:
            turn.message.settled |= next(times) % 10 == 0
        succeed(turns)

    work._succeed = forgetful


async def main(settings):
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    now, work = time.monotonic_ns, settings["work"]

    def say(what, *words):
        os.write(log, " ".join([what, str(now()), *map(str, words)]).encode() + b"\n")

    async def handle(message):
        words = message.data.decode()
        say("S", words)
        try:
            if work:
                await asyncio.sleep(work)
            say("E", words)
        except BaseException:
            say("C", words)
            raise

    async def beat():
        before = now()
        while True:
            await asyncio.sleep(BEAT)
            if now() - before > settings["pause"] * 1e9:
                say("P", now() - before)
            before = now()

    async def confirm():
        while True:
            await asyncio.sleep(CONFIRM)
            before = now()
            for _ in range(3):  # acks are sent when the event loop has its next turn
                await asyncio.sleep(0)
            with contextlib.suppress(NattyError):
                await natty.connection.flush(1.0)
                say("F", before)

    async with Natty(**settings["nats"]) as natty:
        group = natty.group(settings["stream"], settings["group"])
        membership = group.join(settings["member"] or None, handle, on_event=lossy(say), **settings["options"])
        beside = [asyncio.create_task(job) for job in (beat(), confirm())]
        async with membership:
            if settings.get("forgetful"):
                forget_some_acks(membership.work)
            with stop_on_signals(membership.leave):
                say("J", membership.member)
                await membership.wait_until_ended()
        say("O", membership.work.overran)
        for task in beside:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

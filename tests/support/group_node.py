"""An instance of a group's member as a separate process: it writes a line for each event of its handlers.

    python group_node.py <JSON: connection settings, stream, group, member ("" for an automatic one), options, log>

A message's payload is `<key> <number>`. Lines: a letter, nanoseconds of the monotonic clock, and for S (a handler
began), E (it succeeded) and C (it was cut short) the key and the number. P: the process was paused until then, for this
many nanoseconds. O: the total number of handlers that overran their lease. L: it lost pin or consumer. F: the server
has all acks from before the time that follows. After SIGTERM it leaves. At SIGUSR1 it prints its state. With
`forgetful` it never sends one ack of ten: the judge has to detect the consequences.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
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


def describe(membership):
    """Print what this instance believes: its reading, pin, credit and messages, and where its tasks wait."""
    reading, work = membership._reading, membership.work
    lines = [f"{membership!r}: {membership._instance!r} {membership.counts}"]
    if reading is not None:
        pull, stint = reading._pull, reading.stint
        early = len(stint.early) if stint is not None else 0
        silent = time.monotonic() - pull._heard
        lines += [
            f"{reading!r}: {reading._pin!r}, {early} early, {reading._forgotten!r}, refused: {reading.refused}",
            f"{pull!r}: {pull.counts}, {len(pull._arrived)} arrived",
            f"answers owed: {pull._owed}, heard {silent:.1f} s ago, retry at {pull._retry_at}",
        ]
    lines += [
        f"{work!r}: {work._lanes!r}, {len(work._running)} running, {len(work._waiting)} waiting for the stint,"
        f" {len(work._later)} to be tried again"
    ]
    print(*lines, sep="\n", file=sys.stderr)
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=sys.stderr)
    sys.stderr.flush()


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
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, describe, membership)
            if settings.get("forgetful"):
                forget_some_acks(membership.work)
            with stop_on_signals(membership.leave):
                say("J", membership.member)
                await membership.wait_until_ended()
        say("O", membership.work.overran)
        for task in beside:
            task.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main(json.loads(sys.argv[1])))

"""An instance of a group's member as a process of its own: tells what its handlers do when, line by line.

    python group_node.py <JSON: connection settings, stream, group, member ("" for an automatic one), options, log>

A message's payload is `<key> <number>`. Lines: what, nanoseconds of the monotonic clock, and for S (a handler began),
E (it succeeded), C (it was cut short) the key and the number. P: the process stood still until then, for so many
nanoseconds. O: so many handlers overran their lease, in all. SIGTERM leaves.
"""

import asyncio
import json
import os
import sys
import time

from natty import Natty
from natty.shutdown import stopped_by_signals

BEAT = 0.05  # seconds


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

    async with Natty(**settings["nats"]) as natty:
        group = natty.group(settings["stream"], settings["group"])
        membership = group.join(settings["member"] or None, handle, **settings["options"])
        beating = asyncio.create_task(beat())
        async with membership:
            with stopped_by_signals(membership.leave):
                say("J", membership.member)
                await membership.ended()
        say("O", membership.work.overran)
        beating.cancel()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

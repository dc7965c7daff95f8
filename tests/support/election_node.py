"""A node of an election as a separate process: it acts, commits, and reports each event with its time as a line.

    python election_node.py <JSON: connection settings, name, election options, kind>

`kind` is "ours", "quiet" (no commits), "many" (elections of these names, which only report that they were won), or
"ancestor": natty's loop in Go (leader.go): get, then put over any value, and a callback that is never stopped.
Lines: [event, seconds of CLOCK_BOOTTIME, token, …]; lines of `ours` about its terms end with the term's number.
SIGUSR1 blocks the event loop for a while, SIGUSR2 holds the interpreter's lock without a break.
"""

import asyncio
import contextlib
import json
import logging
import re
import signal
import sys
import time

from natty import KeyExistsError, KeyNotFoundError, LeadershipLostError, Natty, NattyError
from natty.elections import clock

STEP = 0.02  # seconds between two effects
HANG = 1.0  # seconds


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def hang(number, frame):
    if number == signal.SIGUSR1:
        time.sleep(HANG)
    else:  # one call into C that does not release the lock: a regular expression that backtracks
        until = clock() + HANG
        while clock() < until:
            re.match(r"(a+)+b", "a" * 22)


async def ours(natty, name, options, commits=True):
    election = natty.election(name, **options)

    async def work(term):
        say("elected", clock(), term.token, term.number)
        try:
            while True:
                now = clock()
                if now < term._tenure.deadline and term.remaining() > 0:
                    say("effect", now, term.token, term.number)
                if commits:
                    await commit(term)
                await asyncio.sleep(STEP)
        finally:
            say("ended", clock(), term.token, term.number)

    while True:
        await election.run(work)


async def many(natty, names, options):
    async def lead(name):
        async def work(term):
            say("elected", clock(), term.token, name)
            await asyncio.Event().wait()

        while True:
            await natty.election(name, **options).run(work)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(lead(name))


async def commit(term):
    """Commit like a node that has not noticed the end of its term: the server has to decide."""
    try:
        await term.commit("head", str(term.token).encode())
        say("committed", clock(), term.token, term._chain["head"])
    except LeadershipLostError as error:
        say("refused", clock(), term.token, type(error).__name__)
        raise
    except NattyError as error:
        say("failed", clock(), term.token, str(error)[:80])


async def ancestor(natty, name, options):
    """Get, then put or create, once per period; the callback runs while the answer is "yes"."""
    bucket, node = await natty.create_bucket(options["bucket"], ttl=options["lease"]), options["node_name"]
    leading = asyncio.Event()

    async def work():
        while True:
            await leading.wait()
            say("effect", clock(), node)
            await asyncio.sleep(STEP)

    async def campaign():
        with contextlib.suppress(KeyExistsError, NattyError):  # "try again"
            try:
                have = (await bucket.get(name)).value == node.encode()
            except KeyNotFoundError:
                have = False
            if have:
                leading.set()
                await bucket.put(name, node.encode())
            else:
                leading.clear()
                await bucket.create(name, node.encode())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        while True:
            await campaign()
            await asyncio.sleep(options["lease"] / 10)


async def main():
    settings, name, options, kind = json.loads(sys.argv[1])
    logging.disable()
    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, hang)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with Natty(**settings, ping_interval=0.5) as natty:
        say("ready", clock(), 0)
        if kind == "many":
            await many(natty, name, options)
        await (ancestor(natty, name, options) if kind == "ancestor" else ours(natty, name, options, kind == "ours"))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        say("left", clock(), 0)

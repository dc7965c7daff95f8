"""Helpers for tests of members of groups: a stream with a group, and handlers that record keys and order."""

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from consuming import until
from patient import PATIENCE, PATIENT

from natty.groups import PartitioningFilter

NODE = Path(__file__).with_name("group_node.py")
LONG = {"ack_wait": 60.0, "dead_letters": False}  # no redelivery and no expired pin while a machine is paused
QUICK = {"ack_wait": 1.0, "dead_letters": False}


class Notes:
    """Handles messages and records them by subject; `together` counts handlers that overlapped another of their key."""

    def __init__(self, work=0.0):
        self.done = defaultdict(list)
        self.begun = self.together = 0
        self.running = defaultdict(int)
        self.work = work
        self.gate = asyncio.Event()
        self.gate.set()
        self.gates = {}  # of single keys

    @property
    def count(self):
        return sum(map(len, self.done.values()))

    def handler(self):
        """Return a handler for an instance; all handlers of one `Notes` are judged together."""

        async def handle(message):
            self.begun += 1
            key = message.subject
            self.together += self.running[key] > 0
            self.running[key] += 1
            try:
                if self.work:
                    await asyncio.sleep(self.work)
                await self.gates.get(key, self.gate).wait()
            finally:
                self.running[key] -= 1
            self.done[key].append(int(message.data))

        return handle

    @property
    def ordered(self):
        """Whether the first successes of each key are in order."""
        return all([*dict.fromkeys(numbers)] == sorted(set(numbers)) for numbers in self.done.values())

    async def have(self, count):
        """Wait until `count` different messages are done."""
        await until(lambda: sum(len(set(numbers)) for numbers in self.done.values()) >= count)


async def make(natty, name, *, members=(), partitions=4, **settings):
    """Create a stream and its elastic group "g", whose key is the second token; return the group."""
    await natty.create_stream(name, subjects=[f"{name}.*"], allow_batched=True, **settings)
    group = natty.group(name, "g")
    await group.create(partitions, [PartitioningFilter(f"{name}.*", (1,))])
    if members:
        await group.add(*members)
    return group


def start_instance(server, stream, member, log, options, *, work=0.0, pause=1.0, nats=None, **more):
    """Start an instance of a member of group "g" as a process that writes a log; return the process.

    `member` "" is an automatic member. `more` are arguments of the process, such as its output.
    """
    log.touch()
    settings = {
        "nats": server.connect_options() | PATIENT | (nats or {}),
        "stream": stream,
        "group": "g",
        "member": member,
        "options": options,
        "log": str(log),
        "work": work,
        "pause": pause,
        "forgetful": more.pop("forgetful", False),
    }
    return subprocess.Popen([sys.executable, "-W", "error", str(NODE), json.dumps(settings)], **more)


def partitioned(stream, partitions):
    """Return the settings of a stream on `<stream>.*` that puts the partition of the second token before its subjects.

    A static group with `partitions` partitions can read it.
    """
    token = f"{{{{partition({partitions},1)}}}}"
    transform = {"src": f"{stream}.*", "dest": f"{token}.{stream}.{{{{wildcard(1)}}}}"}
    return {"subjects": [f"{stream}.*"], "subject_transform": transform}


async def publish(natty, stream, numbers, keys=8):
    """Publish each number on `keys` keys, in order."""
    for number in numbers:
        for key in range(keys):
            await natty.publish(f"{stream}.k{key}", b"%d" % number, msg_id=f"{number}/{key}", timeout=PATIENCE)


async def has_state(membership, *states):
    """Wait until an instance is in one of these states."""
    await until(lambda: membership.state in states)


async def consumer(natty, group, member):
    """Return the CONSUMER.INFO of a member's consumer."""
    return await natty.jetstream.request(f"CONSUMER.INFO.{group.consumed_stream}.{group.consumer_name(member)}")

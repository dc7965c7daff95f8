"""Faults for the nodes of a chaos run; each is played to its end, and its damage is repaired."""

import asyncio
import contextlib
import random
import resource
import signal
from collections import Counter
from urllib.parse import unquote

from capture_chaos_load import VICTIM, digest
from capture_chaos_nodes import StuckError, nothing
from patient import PATIENCE
from stores_faults import HANG, LIE, LOSE_ANSWER, Say

from capture.archive.heads import COMPACTION, SWEEP
from natty import JetStreamError, NattyError, NotConnectedError, PublishError, RequestTimeoutError
from natty.config.units import parse_time

KILLING = ("kill", "kill_put", "kill_sweep", "kill_table")
KILLS = {"folder": {"kill": 8, "kill_sweep": 2}, "s3": {"kill": 5, "kill_put": 3, "kill_sweep": 2}}
KILLS["fresh"] = KILLS["folder"] | {"kill_table": 4}  # of a folder whose table is fresh
OTHERS = {"stop": 4, "term": 3, "cut": 2, "half_open": 2, "mute": 2, "server": 2, "fail": 2, "full": 2}
REMOVALS = {"purge": 3, "rollup": 2, "delete": 2}
OF_S3 = {"store": 2, "hang": 2, "lie": 2, "lose": 2}
WITHIN = PATIENCE / 2  # seconds that a leader has for a commit: otherwise, look which node leads now
REFUSED = Say(500, "InternalError")
FULL = Say(507, "XMinioStorageFull")


def schedule(kind, kills, seed):
    """Return the faults of a run with this kind of store, in order: `kills` kills, and three others for each four.

    Every kind of fault occurs at least once; the seed decides the rest.
    """
    dice = random.Random(seed)
    others = OTHERS | REMOVALS | (OF_S3 if kind == "s3" else {})

    def some(weights, count):
        more = dice.choices(list(weights), list(weights.values()), k=max(0, count - len(weights)))
        return [*weights, *more]

    faults = some(KILLS[kind], kills) + some(others, kills * 3 // 4)
    dice.shuffle(faults)
    return faults


class Faults:
    """Plays faults, several at a time, but only one server fault and one store fault at a time."""

    def __init__(self, natty, nodes, servers, store, options):
        self.natty, self.nodes, self.servers, self.store, self.options = natty, nodes, servers, store, options
        self.played = Counter()
        self.removed = {}  # the digest of each message that was to be removed, by sequence
        self._operating = asyncio.Lock()
        self._storing = asyncio.Lock()

    @property
    def kills(self):
        """Number of nodes that were killed."""
        return sum(self.played[kind] for kind in KILLING)

    async def play(self, kind, node, dice):
        """Play one fault to its end, on `node` if any node will do. StuckError."""
        try:
            async with asyncio.timeout(8 * PATIENCE):
                await getattr(self, f"_{kind}")(node, dice)
        except TimeoutError:
            raise StuckError(f"the fault {kind} did not come to its end; {node!r}: {node.last_lines()}") from None
        self.played[kind] += 1

    # Nodes.

    async def _kill(self, node, dice):
        while True:
            await node.at_work()
            await asyncio.sleep(dice.uniform(0, 1))
            if node.kill():
                return

    async def _kill_put(self, node, dice):
        """Kill the node that stores the next block or entry, before or after the network call."""
        folder = dice.choice(("blocks/", "_entries/"))
        await self._kill_at(lambda request: _is(request, "PUT", folder), dice)

    async def _kill_sweep(self, node, dice):
        """Kill the sweep's leader: at its new manifest, or when it has begun to remove the entries that this adopts."""
        if self.store.kind == "folder":
            await self._kill_at_commit(SWEEP, "_manifest", dice)
        elif dice.choice((True, False)):
            await self._kill_at(lambda request: _is(request, "PUT", "_manifest/"), dice)
        else:
            await self._kill_at(_removes_entries, dice)

    async def _kill_at(self, wanted, dice):
        """Kill the node that sends the next wanted request, and refuse the request or lose its answer."""
        answer = dice.choice((REFUSED, LOSE_ANSWER))
        await self._at_request(wanted, lambda sender: answer if sender.kill() else None)

    async def _kill_table(self, node, dice):
        """Kill the compaction's leader at a commit of the table, in a folder."""
        await self._kill_at_commit(COMPACTION, "_table", dice)

    async def _kill_at_commit(self, office, name, dice):
        """Kill the leader when a commit has appeared in a folder; if it ends before, wait for the next leader."""
        folder, killed = self.store.root / name, False
        while not killed:
            leader, before = await self._leader(office), _newest(folder)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WITHIN):
                    while _newest(folder) == before:
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(dice.choice((0.0, dice.uniform(0, 0.1))))  # between document, head and hint
                    killed = leader.kill()

    async def _leader(self, office):
        """Wait until a node leads."""
        while True:
            with contextlib.suppress(NattyError):
                name = await self.natty.get_leader(office.election(self.options.stream))
                for node in self.nodes:
                    if node.name == name:
                        return node
            await asyncio.sleep(0.1)

    async def _stop(self, node, dice):
        """Pause the node for longer than the sweep's lease, or than the ack wait of its messages."""
        await node.at_work()
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(1.3 * dice.choice((self.options.lease, self.options.ack_wait)))
        node.signal(signal.SIGCONT)

    async def _term(self, node, dice):
        await node.at_work()
        process = node.process
        node.signal(signal.SIGTERM)
        await node.ended(process, within=4 * PATIENCE)

    # Messages, which users of the stream remove.

    async def _purge(self, node, dice):
        victims = await self._victims(dice)
        body = {"filter": victims[0].subject}
        await self._until_done(lambda: self.natty.jetstream.request(f"STREAM.PURGE.{self.options.stream}", body))

    async def _forget(self, node, dice):
        """Purge some of the first messages while a node holds others of them, and kill it: 2.15.1 forgets those."""
        await self._all_read()
        node.signal(signal.SIGSTOP)
        stays, goes = (f"{self.options.stream}.{name}" for name in ("stays", "goes"))
        for _ in range(20):
            await self._publish(stays, {})
            await self._victims(dice, subject=goes, count=1, pause=0.0)
        [victim] = await self._victims(dice, subject=goes, count=1, pause=0.0)
        body = {"filter": victim.subject}
        await self._until_done(lambda: self.natty.jetstream.request(f"STREAM.PURGE.{self.options.stream}", body))
        for _ in range(3):  # whose acks come right after what was purged
            await self._publish(stays, {})
        await asyncio.sleep(2 * self.options.max_age)
        node.kill()

    async def _all_read(self):
        """Wait until every node has an open request for messages."""
        where = f"CONSUMER.INFO.{self.options.stream}.capture"
        while self.options.ack != "group":
            with contextlib.suppress(NattyError):
                if (await self.natty.jetstream.request(where))["num_waiting"] >= len(self.nodes):
                    return
            await asyncio.sleep(0.05)

    async def _rollup(self, node, dice):
        victims = await self._victims(dice)
        await self._publish(victims[0].subject[victims[0].subject.find(self.options.stream) :], {"Nats-Rollup": "sub"})

    async def _delete(self, node, dice):
        victims, where = await self._victims(dice), f"STREAM.MSG.DELETE.{self.options.stream}"
        for victim in dice.sample(victims, len(victims) // 2):
            with contextlib.suppress(JetStreamError):  # it is deleted already: the answer got lost
                await self._until_done(lambda seq=victim.sequence: self.natty.jetstream.request(where, {"seq": seq}))

    async def _victims(self, dice, subject="", count=0, pause=None):
        """Publish some messages on a separate subject, and let nodes hold them for a while; return them."""
        stream, found = self.options.stream, []
        subject = subject or f"{stream}.victims-{dice.randrange(10**9)}"
        for _ in range(count or dice.randint(2, 20)):
            sequence = (await self._publish(subject, {})).seq
            found.append(await self._until_done(lambda seq=sequence: self.natty.jetstream.read(stream, sequence=seq)))
        for one in found:
            self.removed[one.sequence] = digest(parse_time(one.time), one.subject.encode(), one.header_block, one.data)
        await asyncio.sleep(dice.uniform(0, 1.2 * self.options.max_age) if pause is None else pause)
        return found

    async def _publish(self, subject, headers):
        msg_id = f"{VICTIM}-{random.randrange(10**18)}"
        return await self._until_done(
            lambda: self.natty.publish(subject, b'{"victim":true}', headers=headers | {"Nats-Msg-Id": msg_id})
        )

    async def _until_done(self, call):
        """Return the result of the call, and retry it while the server is down."""
        while True:
            try:
                return await call()
            except (RequestTimeoutError, NotConnectedError, PublishError):
                await asyncio.sleep(0.1)

    # The server, and the way to it.

    async def _server(self, node, dice):
        async with self._operating:
            server = dice.choice(self.servers)
            await asyncio.to_thread(server.kill)
            await _a_while(dice)
            await asyncio.to_thread(server.start)

    async def _cut(self, node, dice):
        await node.nats.cut()
        await _a_while(dice)
        await node.nats.restore()

    async def _half_open(self, node, dice):
        node.nats.half_open()
        await _a_while(dice, longest=5.0)
        await node.nats.restore()

    async def _mute(self, node, dice):
        node.nats.mute()

    # The store.

    async def _store(self, node, dice):
        async with self._storing:
            await asyncio.to_thread(self.store.server.restart, dice.uniform(0, 2))

    async def _fail(self, node, dice):
        if self.store.kind == "folder":
            await self._limited(node, resource.RLIMIT_NOFILE, 1, dice)
        else:
            await self._answered(dice.choice(([node], self.nodes)), lambda request: REFUSED, dice)

    async def _full(self, node, dice):
        """Refuse bytes above a limit, so that only a part of an object is written."""
        if self.store.kind == "folder":
            await self._limited(node, resource.RLIMIT_FSIZE, dice.choice((0, 1000)), dice)
        else:
            await self._answered(self.nodes, lambda request: FULL if request.method == "PUT" else None, dice)

    async def _hang(self, node, dice):
        await self._answered([node], lambda request: HANG if request.method == "PUT" else None, dice)

    async def _lie(self, node, dice):
        """Answer for one block or entry that it is stored, without storing it."""
        folder = dice.choice(("blocks/", "_entries/"))
        await self._at_request(lambda request: _is(request, "PUT", folder), lambda sender: LIE)

    async def _lose(self, node, dice):
        """Store an object, and lose the answer."""
        await self._at_request(lambda request: request.method == "PUT", lambda sender: LOSE_ANSWER)

    async def _limited(self, node, what, most, dice):
        await node.at_work()
        node.limit(what, most)
        await _a_while(dice)
        node.limit(what, None)

    async def _answered(self, nodes, fault, dice):
        async with self._storing:
            with _faulty(nodes, lambda node: fault):
                await _a_while(dice, longest=4.0)

    async def _at_request(self, wanted, answer):
        """Wait for a wanted request of any node, and answer it, or the next one if `answer` returns None."""
        done = asyncio.Event()

        def fault_of(node):
            def fault(request):
                given = answer(node) if wanted(request) and not done.is_set() else None
                if given is not None:
                    done.set()
                return given

            return fault

        async with self._storing:
            with _faulty(self.nodes, fault_of):
                await done.wait()


@contextlib.contextmanager
def _faulty(nodes, fault_of):
    for node in nodes:
        node.http.fault = fault_of(node)
    try:
        yield
    finally:
        for node in nodes:
            node.http.fault = nothing


async def _a_while(dice, longest=2.0):
    await asyncio.sleep(dice.uniform(0.3, longest))


def _is(request, method, folder):
    return request.method == method and f"/{folder}" in unquote(request.target)


def _removes_entries(request):
    """Return whether it deletes one entry, or several at once."""
    several = request.method == "POST" and "delete" in request.target.partition("?")[2]
    return _is(request, "DELETE", "_entries/") or (several and b"_entries/" in request.body)


def _newest(folder):
    """Return the last name in a folder, "" if there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return max(path.name for path in folder.iterdir())
    return ""

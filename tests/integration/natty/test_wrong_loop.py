"""A client belongs to one event loop: from elsewhere, every public method says so, or is safe to call."""

import asyncio
import inspect
import threading
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from electing import LONG as LEASE
from electing import vacated
from group_members import LONG, make
from patient import PATIENCE, until

from natty import (
    Bucket,
    Consumption,
    CoreMessage,
    CoreSubscription,
    Election,
    LetterBox,
    Message,
    Natty,
    Outbox,
    Publisher,
    Pull,
    Responder,
    Scheduler,
    Term,
    Watch,
    WrongLoopError,
)
from natty.groups import ElasticGroup, Membership, StaticGroup
from natty.templates import Templates
from natty.wire.connection import Connection
from natty.wire.session import Subscription

ARGUMENTS = {
    "change": lambda value: b"2",
    "commits": {"c": b"1"},
    "data": b"",
    "edit": lambda record: record,
    "command": ["true"],
    "filters": (),
    "function": print,
    "handler": lambda message: None,
    "key": "k",
    "keys": (),
    "mappings": {"m1": [0, 1]},
    "max_streams": 1,
    "members": ("m2",),
    "message": (b"a", b"", b"", b""),
    "messages": [("a", b"")],
    "partitions": 2,
    "replies": [b"$JS.ACK.a"],
    "revision": 1,
    "sequence": 1,
    "sink": print,
    "subjects": [b"a"],
    "until": datetime(2099, 1, 1, tzinfo=UTC),
    "value": b"1",
    "work": lambda term: None,
}
"""Arguments by the parameter's name; "a" for the others."""
OPTIONS = {name: {"after": 1} for name in ("Natty.schedule", "Scheduler.put", "Scheduler.publish")}
"""Named arguments without which a method refuses the call for another reason."""
OTHERS = {
    Connection: {"messages": [ARGUMENTS["message"]], "subject": b"a", "subscription": SimpleNamespace(sid=0)},
    Pull: {"config": {}, "messages": 1},
    Scheduler: {"headers": {}},
    Templates: {"stream": "S_{1}", "subject": "a.*"},
    Term: {"data": b"1"},
}
HANDLES = {"bucket", "dead_letters", "group", "static_group", "stream_templates"}  # return a handle, which is below
STATELESS = {
    Natty: HANDLES | {"as_leader", "connect", "on_publish_error"},
    ElasticGroup: {"consumer_name", "decode", "decode_current"},
    StaticGroup: {"consumer_name", "decode", "decode_current"},
}


async def elsewhere(use):
    """Call a function on another event loop, in another thread, and use to the first step what it returns."""

    async def call():
        async with asyncio.timeout(PATIENCE):
            found = use()
            if hasattr(found, "__aenter__"):
                async with found:
                    pass
            elif inspect.isawaitable(found):
                await found
            elif hasattr(found, "__aiter__"):
                await anext(found.__aiter__())

    await asyncio.to_thread(asyncio.run, call())


def call(method, arguments):
    """Return a call of a method with the arguments that it needs, and with a handler if it takes one."""
    positional, named = [], {**OPTIONS.get(method.__qualname__, {})}
    for one in inspect.signature(method).parameters.values():
        value = arguments.get(one.name, ARGUMENTS.get(one.name, "a"))
        if one.kind is one.VAR_POSITIONAL:
            positional += value
        elif one.kind is not one.VAR_KEYWORD and (one.default is one.empty or one.name == "handler"):
            if one.kind is one.KEYWORD_ONLY or one.name == "handler":
                named[one.name] = value
            else:
                positional.append(value)
    return lambda: method(*positional, **named)


def methods(kind):
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


async def answers(handle, names, arguments):
    """Call methods from elsewhere; return the names of those that do not raise WrongLoopError."""
    quiet = set()
    for name in sorted(names):
        with suppress(WrongLoopError):
            await elsewhere(call(getattr(handle, name), arguments))
            quiet.add(name)
    return quiet


@pytest.mark.parametrize("kind", [Natty, Bucket, LetterBox, Scheduler, Templates, ElasticGroup, StaticGroup])
async def test_every_method_that_sends_says_that_it_is_on_the_wrong_loop(natty, stream, kind):
    handle = {
        Natty: lambda: natty,
        Bucket: lambda: natty.bucket("b"),
        LetterBox: natty.dead_letters,
        Scheduler: lambda: natty.scheduler,
        Templates: natty.stream_templates,
        ElasticGroup: lambda: natty.group("S", "g"),
        StaticGroup: lambda: natty.static_group("S", "g"),
    }[kind]()
    await natty.publish_async(f"{stream}.a", b"")  # so that `flush_publishers` has to wait
    arguments = {"subject": f"{stream}.a"} | OTHERS.get(kind, {})
    assert await answers(handle, methods(kind) - STATELESS.get(kind, set()), arguments) == set()
    assert (await natty.jetstream.request("INFO"))["type"].endswith("account_info_response")


ENDS = {"leave", "step_down", "stop"}
SAFE = {
    Connection: {"call_on_loop", "expect_answer", "is_inbox", "is_refused", "new_inbox", "no_session", "wrong_loop"},
    Consumption: {"stop"},
    CoreMessage: set(),
    CoreSubscription: {"stop"},
    Election: {"commit_subject", "is_leader", "step_down", "transfer"},
    Membership: {"leave"},
    Message: set(),
    Outbox: {"configure"},
    Publisher: set(),
    Pull: {"check_unused", "respect", "stop"},
    Responder: {"stop"},
    Subscription: set(),
    Term: {"check", "remaining", "run_process", "step_down", "to_thread", "transfer"},
    Watch: {"stop"},
}
"""The methods of handles that other threads may call."""
ONCE = {"close", "run", "send", "throw"}  # of what runs already, as a task on its own loop
UNUSED = {Outbox: {"abandon", "close", "configure"}} | dict.fromkeys(
    (Consumption, Pull, Responder), ONCE | {"check_unused"}
)
ENDINGS = [(kind, name) for kind in SAFE for name in sorted(SAFE[kind] & ENDS)]


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("LOOP")
    await natty.create_stream(name, subjects=[f"{name}.*"], allow_batched=True)
    await natty.publish(f"{name}.a", b"")
    return name


async def read(source, first):
    async for _ in source:
        first.set()


@asynccontextmanager
async def opened(kind, natty, name, running):
    """Open a handle on the loop of the test; yield it, and a function whose result ends with it."""

    async def begun(source):
        first = asyncio.Event()
        reading = running(read(source, first))
        await asyncio.wait_for(first.wait(), PATIENCE)
        return source, lambda: reading

    async with AsyncExitStack() as stack:
        if kind is Connection:
            yield natty.connection, None
        elif kind is Subscription:
            yield natty.connection.subscribe(f"{name}.core", print), None
        elif kind in (CoreMessage, CoreSubscription):
            subscription = await stack.enter_async_context(natty.subscribe(f"{name}.core.*"))
            natty.connection.send(f"{name}.core.1", reply=b"answer")
            message = await asyncio.wait_for(subscription.next(), PATIENCE)
            natty.connection.send(f"{name}.core.2")
            yield (message, None) if kind is CoreMessage else await begun(subscription)
        elif kind is Responder:
            responder = await stack.enter_async_context(natty.respond(f"{name}.core", lambda message: None))
            yield responder, lambda: responder._task
        elif kind is Message:
            await natty.create_consumer(name, "d")
            batches = await stack.enter_async_context(aclosing(aiter(natty.pull(name, "d"))))
            (message,) = await asyncio.wait_for(anext(batches), PATIENCE)
            yield message, None
        elif kind is Pull:
            await natty.create_consumer(name, "d")
            yield await begun(natty.pull(name, "d"))
        elif kind is Consumption:

            async def handle(message):
                await until(lambda: "stopping" in repr(consumption))

            await natty.publish(f"{name}.b", b"")
            consumption = natty.consume(name, "d", handle)
            task = running(consumption)
            await until(lambda: "1 waiting" in repr(consumption))  # it is handed back at the end
            yield consumption, lambda: task
        elif kind is Watch:
            yield await begun((await natty.create_bucket(name)).watch())
        elif kind is Publisher:
            publisher = await stack.enter_async_context(natty.publisher(name))
            yield publisher, None
            await publisher.publish(f"{name}.b", b"")
            with pytest.raises(WrongLoopError):
                await elsewhere(lambda: publisher.publish(f"{name}.b", b""))
            await until(lambda: not publisher.waiting)  # by the timer that ends an idle batch
            assert publisher.stored == 1
        elif kind is Outbox:
            await natty.publish_async(f"{name}.a", b"")
            yield natty.outbox, None
        elif kind is Membership:
            group = await make(natty, f"{name}_g", members=["m1"])
            membership = await stack.enter_async_context(group.join("m1", ARGUMENTS["handler"], **LONG))
            yield membership, membership.wait_until_ended
        else:
            terms = asyncio.Queue()

            async def work(term):
                await terms.put(term)
                await asyncio.Event().wait()

            election = natty.election(await vacated(natty, name), lease=LEASE)
            running(election.run(work))
            term = await asyncio.wait_for(terms.get(), PATIENCE)
            yield (term if kind is Term else election), lambda: until(lambda: election.losses)


@pytest.mark.parametrize("kind", SAFE)
async def test_each_method_of_a_handle_says_that_it_is_on_the_wrong_loop_or_is_safe(natty, stream, running, kind):
    async with opened(kind, natty, stream, running) as (handle, _):
        names = methods(kind) - UNUSED.get(kind, set()) - ENDS
        assert await answers(handle, names, OTHERS.get(kind, {})) == SAFE[kind] & names


@pytest.mark.parametrize(("kind", "name"), ENDINGS)
async def test_another_thread_can_end_it(natty, stream, running, kind, name):
    async with opened(kind, natty, stream, running) as (handle, over):
        asyncio.get_running_loop().set_debug(True)  # it then refuses what is not safe in another thread
        await elsewhere(call(getattr(handle, name), {}))
        await asyncio.wait_for(over(), PATIENCE)


async def test_a_thread_that_sends_while_something_waits_to_be_sent_is_refused_too(natty):
    refused = []

    def send():
        try:
            natty.connection.send("a", b"")
        except WrongLoopError as error:
            refused.append(error)

    natty.connection.send("a", b"")
    thread = threading.Thread(target=send)
    thread.start()
    thread.join()  # the loop has had no turn
    assert refused


async def test_the_error_says_what_to_do_and_another_thread_can_do_it(natty):
    with pytest.raises(WrongLoopError, match=r"natty\.blocking, or hand the call to its loop with asyncio\.run_corou"):
        await elsewhere(natty.connection.flush)
    loop = asyncio.get_running_loop()
    flushed = await asyncio.to_thread(
        lambda: asyncio.run_coroutine_threadsafe(natty.connection.flush(), loop).result(PATIENCE)
    )
    assert flushed is None

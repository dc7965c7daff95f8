import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from electing import LONG, vacated
from patient import PATIENCE, PATIENT

import natty as package
from natty import KeyExistsError, KeyNotFoundError, Natty, NattyError, RevisionConflictError, as_leader
from natty.consuming.shutdown import SIGNALS

ROOT = Path(__file__).parents[3]


async def test_a_service_from_end_to_end(nats_server, natty_name):
    """What the first page of the documentation shows."""
    name, seen = natty_name("ORDERS"), []
    async with Natty(**PATIENT | nats_server.connect_options()) as natty:
        await natty.ensure_stream(name, subjects=[f"{name}.>"])
        ack = await natty.publish(f"{name}.new", b"1", msg_id="order-1", headers={"Trace": "t"})
        assert (ack.stream, ack.seq) == (name, 1)

        async def handle(message):
            seen.append((message.subject, message.data, message.msg_id, message.headers["Trace"]))
            consumption.stop()

        consumption = natty.consume(name, "billing", handle, concurrency=4)
        await asyncio.wait_for(consumption.run(), PATIENCE)
    assert seen == [(f"{name}.new", b"1", "order-1", ["t"])]
    assert repr(natty).startswith("Natty(Connection(closed, tls://127.0.0.1:")


async def test_connect_is_the_same_without_a_block(nats_server):
    natty = await Natty.connect(**PATIENT | nats_server.connect_options())
    assert natty.connection.connected
    await natty.close()
    await natty.close()


async def test_key_value_in_one_line_each(natty, natty_name):
    bucket = natty_name("settings")
    first = await natty.put(bucket, "a.b", b"1", create_bucket=True)
    assert (await natty.get(bucket, "a.b")).value == b"1"
    second = await natty.update(bucket, "a.b", b"2", revision=first)
    with pytest.raises(RevisionConflictError):
        await natty.update(bucket, "a.b", b"3", revision=first)
    assert (await natty.refresh(bucket, "a.b", revision=second)).revision > second
    await natty.create(bucket, "c", b"", ttl=60)
    with pytest.raises(KeyExistsError):
        await natty.create(bucket, "c", b"")
    assert await natty.keys(bucket) == ["a.b", "c"]
    assert await natty.keys(bucket, "a") == ["a.b"]
    await natty.delete(bucket, "c")
    with pytest.raises(KeyNotFoundError):
        await natty.get(bucket, "c")
    await natty.delete_bucket(bucket)


async def test_work_as_leader_of_a_connected_client(natty, natty_name):
    name = await vacated(natty, natty_name("sweep"), "facade")

    @natty.as_leader(name, lease=LONG, node_name="n1", bucket="facade")
    async def sweep(term):
        """Sweep."""
        term.check()
        return term.node, term.token

    node, token = await asyncio.wait_for(sweep(), PATIENCE)
    assert (node, sweep.__name__, sweep.__doc__) == ("n1", "sweep", "Sweep.")
    assert token > 0


async def test_work_as_leader_gets_the_arguments_of_its_call(natty, natty_name):
    """Of a coroutine function, and of a plain one, which runs in a thread."""
    name = await vacated(natty, natty_name("sweep"), "facade")

    @natty.as_leader(name, lease=LONG, bucket="facade")
    async def sweep(term, a, b=1):
        return term.name, a, b

    @natty.as_leader(name, lease=LONG, bucket="facade")
    def sweep_in_a_thread(term, a, b=1):
        return term.name, a, b

    for work in (sweep, sweep_in_a_thread):
        assert await asyncio.wait_for(work(5, b=2), PATIENCE) == (name, 5, 2)
        assert await asyncio.wait_for(work("x"), PATIENCE) == (name, "x", 1)


async def test_work_as_leader_that_connects_by_itself(nats_server, natty, natty_name):
    name = await vacated(natty, natty_name("sweep"), "facade")

    @as_leader(name, settings=PATIENT | nats_server.connect_options(), lease=LONG, bucket="facade")
    async def sweep(term, *parts, end):
        return term.name, *parts, end

    assert await asyncio.wait_for(sweep(1, 2, end=3), PATIENCE) == (name, 1, 2, 3)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("leads", [True, False], ids=["leads", "waits"])
async def test_a_repeated_leader_ends_at_a_signal_and_its_lease_is_free(nats_server, natty, natty_name, leads, number):
    name, at = await vacated(natty, natty_name("nightly"), "facade"), nats_server.connect_options()
    ready = asyncio.Event()

    @as_leader(
        name,
        settings=PATIENT | at,
        lease=LONG,
        bucket="facade",
        every=LONG,
        on_new_leader=lambda node: None if leads else ready.set(),
    )
    async def work(term):
        ready.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        if not leads:
            await stack.enter_async_context(natty.leader(name, lease=LONG, bucket="facade"))
        running = asyncio.create_task(work())
        await asyncio.wait_for(ready.wait(), PATIENCE)
        signal.raise_signal(number)
        assert await asyncio.wait_for(running, PATIENCE) is None
    assert await natty.get_leader(name, bucket="facade") is None


async def test_a_repeated_leader_that_is_cancelled_says_so(nats_server, natty, natty_name):
    name, began = await vacated(natty, natty_name("nightly"), "facade"), asyncio.Event()

    @as_leader(name, settings=PATIENT | nats_server.connect_options(), lease=LONG, bucket="facade", every=LONG)
    async def work(term):
        began.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(work())
    await asyncio.wait_for(began.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_settings_come_from_the_environment(nats_server, monkeypatch):
    options = nats_server.connect_options()
    for variable, value in {
        "NATS_URL": options["servers"][0],
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
    }.items():
        monkeypatch.setenv(variable, value)
    async with Natty(connect_timeout=PATIENCE) as natty:
        assert natty.connection.connected


async def test_a_fixture_of_the_plugin_is_a_connected_client(natty):
    assert natty.connection.connected
    assert (await natty.jetstream.request("INFO"))["type"].endswith("account_info_response")


def test_every_error_has_one_root_and_a_sentence_of_its_own():
    public = [getattr(package, name) for name in package.__all__]
    errors = [one for one in public if isinstance(one, type) and issubclass(one, Exception)]
    assert len(errors) > 15
    for error in errors:
        assert issubclass(error, NattyError)
        assert str(error()) == error.__doc__.strip().splitlines()[0]


def test_every_public_name_is_there():
    assert all(hasattr(package, name) for name in package.__all__)


def test_importing_natty_loads_nothing_of_capture():
    code = "import sys, natty; print(set(sys.modules) & {'capture', 'pyarrow', 'pyspark', 'typer', 'pytest'})"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"

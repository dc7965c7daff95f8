"""SIGTERM and SIGINT: a service that awaits a consumption ends well; an application's own handlers stay its own."""

import asyncio
import signal
import subprocess
import sys

import pytest
from consuming import Handler, fill, info, until

SCRIPT = """
import asyncio, signal, sys, threading
from natty import Natty

BEFORE, OPTIONS = sys.argv[6:]

async def handle(message):
    print("begun", flush=True)
    await asyncio.sleep(float(message.data))
    print("done", flush=True)

async def main(stream, server, ca, cert, key):
    exec(BEFORE)
    async with Natty(server, tls_ca=ca, tls_cert=cert, tls_key=key) as natty:
        await natty.consume(stream, "d", handle, **eval(OPTIONS))
    print("ended", flush=True)

asyncio.run(main(*sys.argv[1:6]))
"""


class Service:
    """A process that consumes a stream, and what it prints."""

    def __init__(self, process):
        self.process = process

    async def says(self):
        """Return the next line."""
        async with asyncio.timeout(30):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def ended(self):
        """Return (exit status, what it still printed, what it complained of)."""
        out, err = await asyncio.to_thread(self.process.communicate, timeout=30)
        return self.process.returncode, out.split(), err

    def signal(self, number):
        self.process.send_signal(number)


@pytest.fixture
def serve(nats_server):
    """Start services; those that still run after the test are killed."""
    started = []

    def start(stream, *, before="", **options):
        connect = nats_server.connect_options()
        arguments = [stream, *connect["servers"], connect["tls_ca"], connect["tls_cert"], connect["tls_key"]]
        command = [sys.executable, "-c", SCRIPT, *arguments, before, repr({"dead_letters": False} | options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return Service(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of three messages: seconds that their handler takes."""
    return await fill(natty, natty_name("SIGNALS"), 3, payload=lambda number: b"0.5")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_running_handler_finish_and_the_process_end_well(natty, stream, serve, number):
    service = serve(stream, consumer={"ack_wait": 60.0})
    assert await service.says() == "begun"
    service.signal(number)
    assert await service.ended() == (0, ["done", "ended"], "")
    state = await info(natty, stream)
    assert state["ack_floor"]["stream_seq"] == 1


async def test_what_takes_too_long_is_handed_back(natty, natty_name, serve, start):
    stream, got = await fill(natty, natty_name("SIGNALS"), 2, payload=lambda number: b"600"), []
    service = serve(stream, shutdown_timeout=0.2, consumer={"ack_wait": 60.0})
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    status, out, err = await service.ended()
    assert (status, out) == (0, ["ended"])
    assert "1 handlers did not finish within 0.2 s: cancelled" in err

    async def handle(message):
        got.append(message.sequence)

    start(stream, handle)
    await until(lambda: sorted(got) == [1, 2])


async def test_a_second_signal_ends_the_process_as_ever(natty_name, natty, serve):
    stream = await fill(natty, natty_name("SIGNALS"), 1, payload=lambda number: b"600")
    service = serve(stream, shutdown_timeout=600.0)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        while service.process.poll() is None:
            await asyncio.sleep(0.2)
            service.signal(signal.SIGTERM)
    assert service.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))",
        "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: print('mine', flush=True))",
    ],
)
async def test_a_handler_of_the_applications_own_is_left_alone(stream, serve, before):
    service = serve(stream, before=before)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    assert {await service.says() for _ in range(4)} == {"mine", "done", "begun"}  # it goes on


async def test_after_the_last_consumption_the_handlers_of_before_are_back(natty, natty_name, start):
    def handlers():
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    stream = await fill(natty, natty_name("SIGNALS"), 3)
    before = handlers()
    first, first_task = start(stream, Handler(), durable="first")
    second, second_task = start(stream, Handler(), durable="second")
    await until(lambda: first.handled == second.handled == 3)
    taken = handlers()
    assert not set(before) & set(taken)
    first.stop()
    await first_task
    assert handlers() == taken
    second.stop()
    await second_task
    assert handlers() == before


async def test_it_may_be_switched_off(stream, serve):
    service = serve(stream, signals=False)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    assert (await service.ended())[0] == -signal.SIGTERM

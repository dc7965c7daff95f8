"""SIGTERM and SIGINT: a service that awaits a consumption ends well; an application's own handlers stay its own."""

import asyncio
import signal
import subprocess
import sys

import pytest
from consuming import HANDED_BACK, Handler, fill, info, until
from patient import NEVER, PATIENCE, PATIENT

SCRIPT = f"""
import asyncio, signal, sys
from natty import Natty

BEFORE, OPTIONS = sys.argv[6:]

async def main(stream, server, ca, cert, key):
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)

    async def handle(message):
        print("begun", flush=True)
        await orders.readline()
        print("done", flush=True)

    def stop():
        print("stopping", flush=True)
        Consumption.stop(consumption)

    exec(BEFORE)
    async with Natty(server, tls_ca=ca, tls_cert=cert, tls_key=key, **{PATIENT}) as natty:
        consumption = natty.consume(stream, "d", handle, **eval(OPTIONS))
        Consumption, consumption.stop = type(consumption), stop
        await consumption
    print("ended", flush=True)

asyncio.run(main(*sys.argv[1:6]))
"""


class Service:
    """A process that consumes a stream, and what it prints: each message until it is told to go on."""

    def __init__(self, process):
        self.process = process

    async def says(self):
        """Return the next line."""
        async with asyncio.timeout(PATIENCE):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def go_on(self):
        """Let the running handler finish."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    async def ended(self):
        """Return (exit status, what it still printed, what it complained of)."""
        status = await asyncio.to_thread(self.process.wait, PATIENCE)
        return status, self.process.stdout.read().split(), self.process.stderr.read()

    def signal(self, number):
        self.process.send_signal(number)


@pytest.fixture(autouse=True)
def interruptible():
    """Where pytest itself runs in the background, SIGINT is ignored, and children would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def serve(nats_server):
    """Start services; those that still run after the test are killed."""
    started = []

    def start(stream, *, before="", **options):
        connect = nats_server.connect_options()
        arguments = [stream, *connect["servers"], connect["tls_ca"], connect["tls_cert"], connect["tls_key"]]
        command = [sys.executable, "-c", SCRIPT, *arguments, before, repr({"dead_letters": False} | options)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, text=True, **pipes)
        started.append(process)
        return Service(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of three messages."""
    return await fill(natty, natty_name("SIGNALS"), 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_running_handler_finish_and_the_process_end_well(natty, stream, serve, number):
    service = serve(stream, consumer=HANDED_BACK, shutdown_timeout=NEVER)
    assert await service.says() == "begun"
    service.signal(number)
    assert await service.says() == "stopping"
    await asyncio.sleep(0.2)  # for it to be cut short, if it were
    service.go_on()
    assert await service.ended() == (0, ["done", "ended"], "")

    async def acked():
        return (await info(natty, stream))["ack_floor"]["stream_seq"] == 1

    await until(acked)


async def test_what_takes_too_long_is_handed_back(natty, stream, serve, start):
    got = []
    service = serve(stream, shutdown_timeout=0.2, consumer=HANDED_BACK)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    status, out, err = await service.ended()
    assert (status, out) == (0, ["stopping", "ended"])
    assert "1 handlers did not finish within 0.2 s: cancelled" in err

    async def handle(message):
        got.append(message.sequence)

    start(stream, handle)
    await until(lambda: sorted(got) == [1, 2, 3])


async def test_a_second_signal_ends_the_process_as_ever(stream, serve):
    service = serve(stream, shutdown_timeout=NEVER)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    assert await service.says() == "stopping"
    service.signal(signal.SIGTERM)
    assert await service.ended() == (-signal.SIGTERM, [], "")


@pytest.mark.parametrize(
    "before",
    [
        # not print: it may interrupt one, and Python refuses that with an error, which the handler of the message gets
        "signal.signal(signal.SIGTERM, lambda *_: __import__('os').write(1, b'mine\\n'))",
        "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: print('mine', flush=True))",
    ],
)
async def test_a_handler_of_the_applications_own_is_left_alone(stream, serve, before):
    service = serve(stream, before=before)
    assert await service.says() == "begun"
    service.signal(signal.SIGTERM)
    assert await service.says() == "mine"
    service.go_on()
    assert [await service.says(), await service.says()] == ["done", "begun"]  # it goes on with the next one


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

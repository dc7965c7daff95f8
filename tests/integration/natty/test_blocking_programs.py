"""natty.blocking in whole programs: signals, forks, and the end of the main thread."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from consuming import HANDED_BACK
from patient import PATIENCE, PATIENT

from natty import blocking

ROOT = Path(__file__).parents[3]


def run(code, nats_server, *, interrupt=None):
    """Run a program that prints "ready"; send it a signal then. Return its status and what it printed."""
    options = nats_server.connect_options()
    environment = os.environ | {
        "NATS_URL": options["servers"][0],
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
        "NATS_TIMEOUT": f"{PATIENCE}s",
        "NATS_CONNECT_TIMEOUT": f"{PATIENCE}s",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "error", "-u", "-c", code]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        giving_up = threading.Timer(PATIENCE, process.kill)
        giving_up.start()
        said = process.stdout.readline()
        if interrupt is not None and said == "ready\n":
            process.send_signal(interrupt)
        said += process.stdout.read()
        status = process.wait()
        giving_up.cancel()
    return status, said


CONSUME = """
from natty.blocking import Natty
import time
def handle(message):
    print("ready", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)
with Natty() as client:
    client.create_stream("{0}", subjects=["{0}"])
    client.publish("{0}", b"")
    try:
        client.consume("{0}", "d", handle).run()
    except KeyboardInterrupt:
        print("interrupted")
    print(client.ensure_consumer("{0}", "d")["durable_name"])
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGTERM, "")])
def test_a_signal_lets_the_handler_finish_and_the_program_go_on(nats_server, natty_name, number, said):
    status, output = run(CONSUME.format(natty_name("SIGNAL")), nats_server, interrupt=number)
    assert (status, output) == (0, f"ready\nfinished\n{said}d\n")


def test_a_program_that_forgets_to_close_ends_and_publishes_what_it_took(nats_server, natty_name):
    name = natty_name("EXIT")
    code = f"""
from natty.blocking import Natty
client = Natty.connect()
client.create_stream("{name}", subjects=["{name}"])
for number in range(100):
    client.publish_async("{name}", b"%d" % number)
print("ready")
"""
    assert run(code, nats_server) == (0, "ready\n")
    with blocking.Natty(**PATIENT | nats_server.connect_options()) as client:
        assert len(list(client.read(name))) == 100


def test_after_a_fork_the_client_says_so_and_another_one_works(nats_server, natty_name):
    name = natty_name("FORK")
    code = f"""
import os
from natty import WrongLoopError
from natty.blocking import Natty
with Natty() as client:
    client.create_stream("{name}", subjects=["{name}"])
    child = os.fork()
    if not child:
        try:
            client.publish("{name}", b"")
        except WrongLoopError as error:
            print("before a fork" in str(error))
        with Natty() as other:
            print(other.publish("{name}", b"").seq)
        os._exit(0)
    os.waitpid(child, 0)
    print(client.publish("{name}", b"").seq)
"""
    assert run(code, nats_server) == (0, "True\n1\n2\n")


def test_a_fork_leaves_the_handlers_to_its_parent(nats_server, natty_name):
    name = natty_name("FORK")
    code = f"""
import os, sys
from natty.blocking import Natty
with Natty() as client:
    client.create_stream("{name}", subjects=["{name}"])
    messages = client.read("{name}", follow=True)
    client.publish("{name}", b"")
    next(messages)
    with client.consume("{name}", "d", lambda message: None) as running:
        child = os.fork()
        if not child:
            running.stop()
            sys.exit(0)
        print(os.waitpid(child, 0)[1])
    client.publish("{name}", b"")
    print(next(messages).sequence)
"""
    assert run(code, nats_server) == (0, "0\n2\n")


AT_THE_END = {
    "a block that is never left": "client.consume(NAME, 'd', handle, **OPTIONS).__enter__()",
    "a thread": "threading.Thread(target=client.consume(NAME, 'd', handle, **OPTIONS).run).start()",
    "a thread with an event loop": """
async def consume():
    async with natty.Natty() as client:
        await client.consume(NAME, "d", handle, **OPTIONS)
def run():
    try:
        asyncio.run(consume())
    except natty.ThreadsEndedError:
        pass
threading.Thread(target=run).start()
""",
}
OPTIONS = {"concurrency": 4, "retries": (), "consumer": HANDED_BACK}
MANY = 2000  # messages: their handlers need 10 seconds


@pytest.mark.parametrize("runs_in", AT_THE_END)
@pytest.mark.long
def test_messages_that_no_handler_took_when_the_main_thread_ends_are_handed_back(nats_server, natty_name, runs_in):
    name = natty_name("END")
    code = f"""
import asyncio, threading, time
import natty
from natty.blocking import Natty
NAME = "{name}"
OPTIONS = {OPTIONS}
taken = threading.Event()
def handle(message):
    taken.set()
    time.sleep(0.02)
client = Natty.connect()
client.create_stream(NAME, subjects=[NAME])
for number in range({MANY}):
    client.publish_async(NAME, b"%d" % number)
client.flush_publishers()
{AT_THE_END[runs_in]}
taken.wait()
print("ready")
"""
    status, said = run(code, nats_server)
    assert (status, said.splitlines()[0]) == (0, "ready")
    assert "dead letter" not in said
    assert "event loop" in runs_in or said == "ready\n"  # it was stopped, and has not failed
    with blocking.Natty(**PATIENT | nats_server.connect_options()) as client:
        assert client.consumer_info(name, "d")["ack_floor"]["stream_seq"] < MANY
        seen = []
        with client.consume(name, "d", lambda message: seen.append(message.sequence)):
            deadline = time.monotonic() + PATIENCE
            while client.consumer_info(name, "d")["ack_floor"]["stream_seq"] < MANY and time.monotonic() < deadline:
                time.sleep(0.05)
        assert MANY in seen
        assert client.consumer_info(name, "d")["num_ack_pending"] == 0


def test_the_programs_own_handler_of_sigterm_stays(nats_server, natty_name):
    name = natty_name("OWN")
    code = f"""
import signal
from natty.blocking import Natty
with Natty() as client:
    client.create_stream("{name}", subjects=["{name}"])
    client.publish("{name}", b"")
    def own(number, frame):
        print("own")
        running.stop()
    signal.signal(signal.SIGTERM, own)
    running = client.consume("{name}", "d", lambda message: print("ready"))
    running.run()
"""
    assert run(code, nats_server, interrupt=signal.SIGTERM) == (0, "ready\nown\n")

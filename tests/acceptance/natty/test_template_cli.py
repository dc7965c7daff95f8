"""`natty stream template`: declared, run by processes that are killed, and told in one sentence what is wrong."""

import asyncio
import json
import signal
import sys

import pytest
from patient import PATIENCE, PATIENT
from template_streams import drained

from natty import Natty, NattyError
from natty.testing import NatsServer

DIES = {
    "what is to be made is decided, and nothing is made": """
from natty.templates import maker
async def die(*given): os.kill(os.getpid(), signal.SIGKILL)
maker.create_document = die""",
    "the stream is made, and nobody has noted it": """
from natty.templates import maker
create = maker.create_document
async def made(*given):
    await create(*given)
    os.kill(os.getpid(), signal.SIGKILL)
maker.create_document = made""",
}


def start_dying(shell, patch):
    """Start a node that kills itself where the patch says."""
    script = f"import os, signal, sys\nfrom natty.cli import main\n{patch}\nsys.exit(main())"
    return shell.execute([sys.executable, "-c", script, "stream", "template", "run", "--lease", "1"])


def add(shell, name, *options):
    return shell.natty(
        "stream", "template", "add", name, "--subject", f"{name}.*", "--stream", f"{name}_{{1}}", *options
    )


@pytest.mark.parametrize("patch", DIES.values(), ids=DIES)
def test_a_leader_that_is_killed_at_work_leaves_one_stream_and_every_message_once(shell, served, natty_name, patch):
    name = natty_name("t")
    assert add(shell, name).status == 0
    dying = start_dying(shell, patch)

    async def publish(natty):
        for number in range(20):
            await natty.publish(f"{name}.a", b"%d" % number)

    served(publish)
    assert shell.finish(dying).status == -signal.SIGKILL
    second = shell.start("natty", "stream", "template", "run", "--lease", "1", "--node-name", f"{name}-2")

    async def taken_over(natty):
        async with asyncio.timeout(PATIENCE):
            while await natty.get_leader("stream-templates") != f"{name}-2":
                await asyncio.sleep(0.05)
        return await drained(natty, name)

    made = served(taken_over)
    assert made == {f"{name}_a": [b"%d" % number for number in range(20)]}
    second.send_signal(signal.SIGTERM)
    assert shell.finish(second).status == 0


def test_no_acknowledged_message_is_lost_or_doubled_however_often_leaders_are_killed(shell, served, natty_name):
    name = natty_name("t")
    assert add(shell, name).status == 0
    nodes = {}

    def start(node):
        nodes[node] = shell.start("natty", "stream", "template", "run", "--lease", "1", "--node-name", node)

    for node in (f"{name}-1", f"{name}-2", f"{name}-3"):
        start(node)

    async def work(natty):
        acked, publishing = {}, True

        async def publish(first):
            number = 0
            while publishing:
                token = f"{first}{number // 10}"  # ten messages each, then a new token
                await natty.publish(f"{name}.{token}", b"%s %d" % (token.encode(), number))
                acked.setdefault(f"{name}_{token}", []).append(b"%s %d" % (token.encode(), number))
                number += 1
                await asyncio.sleep(0.005)

        publishers = [asyncio.create_task(publish(first)) for first in "abcd"]
        for _ in range(4):
            async with asyncio.timeout(PATIENCE):
                while (leader := await natty.get_leader("stream-templates")) not in nodes:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.7)
            nodes[leader].kill()
            await asyncio.to_thread(nodes[leader].communicate)
            start(leader)
        publishing = False
        await asyncio.gather(*publishers)
        assert len(acked) > 20
        return acked, await drained(natty, name)

    acked, made = served(work)
    assert made == acked
    for process in nodes.values():
        process.kill()


def test_no_acknowledged_message_is_lost_or_doubled_when_the_server_is_killed(shell, natty_name):
    name = natty_name("t")

    async def work(server):
        acked, tried = [], []
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await natty.stream_templates().add(name, subject=f"{name}.*", stream=f"{name}_{{1}}")
            running = asyncio.create_task(natty.stream_templates().run())
            for number in range(2000):
                if number == 1000:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                tried.append(b"%d" % number)
                try:
                    await natty.publish(f"{name}.{number % 7}", tried[-1])
                except NattyError:
                    continue
                acked.append(tried[-1])
            stored = await drained(natty, name)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return acked, tried, [data for stream in stored.values() for data in stream]

    with NatsServer() as server:
        acked, tried, stored = asyncio.run(work(server))
    assert len(stored) == len(set(stored))
    assert set(acked) <= set(stored) <= set(tried)
    assert len(acked) >= 1990


def test_a_template_is_declared_shown_run_and_removed(shell, served, natty_name):
    name = natty_name("t")
    assert f"{name}.* goes to streams {name}_{{1}}" in add(shell, name, "--max-age", "7d", "--max-streams", "5").out
    served(lambda natty: natty.publish(f"{name}.a", b"x"))
    told = shell.natty("stream", "template", "info", name)
    assert f"{name}.a" in told.out
    assert "0 of 5" in told.out
    node = shell.start("natty", "stream", "template", "run")
    assert served(lambda natty: drained(natty, name)) == {f"{name}_a": [b"x"]}
    told = json.loads(shell.natty("stream", "template", "info", name, "--json").out)
    assert (told["streams"], told["waiting"]) == ([f"{name}_a"], {})
    node.send_signal(signal.SIGTERM)
    assert shell.finish(node).status == 0
    listed = json.loads(shell.natty("stream", "template", "ls", "--json").out)
    assert name in [one["name"] for one in listed]
    assert shell.natty("stream", "template", "rm", name).complaint.endswith("no terminal to ask on: give --force")
    assert "1 stream takes its own subjects" in shell.natty("stream", "template", "rm", name, "--force").out
    assert served(lambda natty: natty.publish(f"{name}.a", b"y")).stream == f"{name}_a"


def test_bad_input_ends_in_one_sentence(shell, natty_name):
    name = natty_name("t")
    wrong = {
        ("add", name, "--subject", f"{name}.*", "--stream", name): (1, "gives all streams one name"),
        ("add", name, "--subject", f"{name}.*", "--stream", "{1}", "--max-age", "1s"): (1, "60 s at least"),
        ("add", "a.b", "--subject", f"{name}.*", "--stream", "{1}"): (1, "write letters, digits"),
        ("info", name): (1, f"there is no template {name}"),
        ("rm", name, "--force"): (1, f"there is no template {name}"),
        ("run", "--lease", "0.1"): (1, "too short"),
    }
    started = {words: shell.start("natty", "stream", "template", *words) for words in wrong}
    for words, (status, complaint) in wrong.items():
        done = shell.finish(started[words])
        assert (done.status, complaint in done.complaint) == (status, True), done.err
    missing = shell.natty("stream", "template", "add", name)
    assert (missing.status, "--subject is missing, and there is no terminal" in missing.err) == (2, True)

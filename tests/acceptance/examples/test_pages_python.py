"""The Python of the README and of docs/ runs in this process, block by block, against a real server.

What runs elsewhere, or nowhere, is listed in tests/support/pages.py: a new block is run here, or fails.
"""

import asyncio
import re
import shutil
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.request import urlopen

import pytest
from archived import records
from electing import vacated
from node_beside import running_here
from own_code import write_module
from pages import PAGES, Page, python_of
from pages_world import archive_orders, make_orders, prepared
from patient import PATIENCE, until

from capture import Node, load
from natty import NoRespondersError, Term
from natty.streams.listing import stream_names
from natty.testing.spawner import free_ports

DOCUMENTED_SERVER = '"tls://nats.example.com:4222"'
PROGRAMS = {  # page: what each of its programs prints
    "README.md": [r'^orders\.eu\.1 {"total": 12}$'],
    "tour.md": [r'^orders\.eu\.1 {"total": 12}$', r"^swept from None under token \d+$", r"^10000 stored$"],
    "blocking.md": [r"^read 1 first\nhandled first$", r"^only one process does this$"],
    "publish-later.md": [r"^orders.reminder order 7 is not paid$"],
    "key-value.md": [r"^mail\.rate 20\nmail\.sent 1\n2 keys shown; the next events are live$"],
}
ELECTIONS = {"tour.md": ["sweeper"], "blocking.md": ["billing"]}


@pytest.fixture
async def client(page_server, tmp_path, monkeypatch):
    """A client of a server without streams; `Natty()` connects to it, too."""
    async with prepared(page_server, tmp_path, monkeypatch) as client:
        yield client


@pytest.fixture
def page(client, page_server):
    """Open a page: `page(name, names that its reader has)`. In the end each of its blocks must have run."""
    opened = []

    def open_page(name, changes=None, **names):
        path = next(path for path in PAGES if path.name == name)
        changes = {DOCUMENTED_SERVER: f'"{page_server.url}"'} | (changes or {})
        opened.append(Page(path, {"client": client} | names, changes))
        return opened[-1]

    yield open_page
    assert [one.left for one in opened] == [[] for _ in opened]


@pytest.fixture
def said(capsys):
    """Return a function that returns all that was printed so far."""
    texts = []

    def read():
        texts.append(capsys.readouterr().out)
        return "".join(texts)

    return read


async def printed(running, said, pattern):
    """Wait until a program has printed this, or has ended."""
    await until(lambda: running.done() or re.search(pattern, said(), re.MULTILINE))
    if running.done():
        await running
    assert re.search(pattern, said(), re.MULTILINE), said()


async def stopped(running):
    """Stop a program with SIGTERM, which is to end it well."""
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "it does not listen"
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        await running


def test_each_page_with_python_has_a_test_here():
    tested = {*PROGRAMS, *re.findall(r'= page\("([^"]+)"', Path(__file__).read_text())}
    assert tested == {path.name for path in PAGES if python_of(path)}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_programs_of_a_page_do_what_it_says(name, page, client, said):
    for election in ELECTIONS.get(name, ()):
        await vacated(client, election)
    read = page(name)
    for pattern in PROGRAMS[name]:
        forever = "until SIGTERM" in read.left[0]
        running = asyncio.create_task(read.run())
        await printed(running, said, pattern)
        if forever:
            await stopped(running)
        await running


async def test_administration(page, client):
    await make_orders(client)
    read = page("administration.md")
    await read.run()
    assert read.scope["purged"] == 5
    assert read.scope["last"].subject.startswith("orders.eu.")
    assert [one["config"]["name"] for one in read.scope["listing"].found] == ["ORDERS"]
    assert (await client.stream_info("ORDERS"))["state"]["messages"] == 20 - 5 - 1


async def test_a_node_calls_the_pages_hook_and_lays_blocks_out_as_its_function_says(page, client, said, monkeypatch):
    await make_orders(client)
    read = page("capture-node.md")
    await read.run()
    await read.run()
    name = "page_of_the_node"
    module = ModuleType(name)
    vars(module).update(read.scope)
    monkeypatch.setitem(sys.modules, name, module)
    settings = 'on_store_complete = "page_of_the_node:report"\nlayout = "page_of_the_node:by_customer"\n'
    Path("capture.toml").write_text(f'stream = "ORDERS"\nstore = "lake"\n{settings}[limits]\nmax_age = 0.2\n')
    async with running_here(Node(load(Path("capture.toml")))):
        await until(lambda: re.search(r"^blocks/customers/\S+ 20 \d+ [\d.e-]+ None$", said(), re.MULTILINE))
    assert len(list(Path("lake/blocks/customers").glob("**/ORDERS-*"))) == 1


async def test_connection(page, page_server, said, monkeypatch):
    shutil.copy(page_server.connect_options()["tls_ca"], "ca.pem")
    names = {
        "vault": SimpleNamespace(read_token=lambda: "token"),
        "read_jwt": lambda: "jwt",
        "sign": lambda nonce: b"",
        "context": ssl.create_default_context(),
    }
    read = page("connection.md", **names)
    await read.run()
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", said())
    for name in ("NATS_CA", "NATS_CERT", "NATS_KEY"):
        monkeypatch.delenv(name)
    await read.run()
    config = read.scope["client"].connection.config
    assert (config.user_jwt, config.sign_nonce, config.ssl_context) == (
        names["read_jwt"],
        names["sign"],
        names["context"],
    )


async def test_consume(page, client, said):
    await make_orders(client)
    read = page("consume.md")
    running = asyncio.create_task(read.run())
    await printed(running, said, r"^order 20 of c0 at orders\.new$")
    await stopped(running)


async def test_dead_letters(page, client):
    await make_orders(client, 1)
    await client.publish("orders.eu.2", b"{}", headers={"Natty-Retry-For": "biller"})
    read = page("dead-letters.md")
    await read.run()
    await client.ensure_consumer("ORDERS", "mailer")
    mailing = client.consume("ORDERS", "mailer", read.scope["mailer"])
    async with asyncio.TaskGroup() as group:
        group.create_task(mailing.run())
        while (await client.consumer_info("ORDERS", "mailer"))["ack_floor"]["stream_seq"] < 2:
            await asyncio.sleep(0.01)
        mailing.stop()
    async for message in client.consume("ORDERS", "other"):
        read.scope |= {"message": message, "error": ValueError("no customer c1")}
        break
    await read.run()
    (letter,) = [one async for one in client.dead_letters().ls()]
    assert (letter.consumer, letter.reason) == ("mailer", "no such customer")


async def test_election(page, client):
    read = page("election.md", Term=Term)
    await read.run()
    election = client.election("sweeper")
    await vacated(client, "sweeper")
    leading = asyncio.create_task(read.scope["sweep"]())
    async with asyncio.timeout(PATIENCE):
        while not ((commit := await election.last_commit("position")) and commit.data == b"42"):
            await asyncio.sleep(0.01)
    leading.cancel()
    await asyncio.wait([leading])
    served = []

    async def serve():
        try:
            await asyncio.Event().wait()
        finally:
            served.append("ended")

    async def report():  # a leader's call that a signal ends
        await asyncio.sleep(0.01)

    read.scope |= {"web": SimpleNamespace(serve=serve), "report": report}
    await read.run()
    async with asyncio.timeout(PATIENCE):
        await read.scope["main"]()
    assert served == ["ended"]


async def test_extending(page, tmp_path, monkeypatch):
    for name in ("msgpack_blocks", "sqlite_store"):
        monkeypatch.syspath_prepend(write_module(tmp_path / name, name))
        monkeypatch.delitem(sys.modules, name, raising=False)
    read = page("extending.md")
    made = []
    while read.left:
        read.scope.pop("_", None)
        await read.run()
        made.append(read.scope.get("_"))
    assert [one.name for one in made if one is not None] == ["expires_after", "avro"]
    assert read.scope["ByHeader"]("Colour")(records([1, 2])) == ["red", ""]


async def test_groups(page, client, said):
    await make_orders(client)
    read = page("groups.md")
    await read.run()
    assert said() == "['m1', 'm2'] (0, 1, 2, 3, 4)\n[]\n"
    await member_handles(read)
    await member_handles(read)


async def member_handles(read):
    """Run a member until it has partitions, and let it leave."""
    running = asyncio.create_task(read.run())
    await until(lambda: "membership" in read.scope or running.done())
    membership = read.scope.pop("membership")
    await until(lambda: membership.partitions)
    membership.leave()
    async with asyncio.timeout(PATIENCE):
        await running


async def test_observability(page, client):
    await make_orders(client, 1)
    sent, (port,) = [], free_ports(1)
    read = page("observability.md", {"127.0.0.1:8190": f"127.0.0.1:{port}"}, send=sent.append)
    running = asyncio.create_task(read.run())
    await until(lambda: sent or running.done())
    with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"natty_" in answer.read()
    await stopped(running)


async def test_reading(page, client, said):
    await archive_orders(client)
    read = page("reading.md", {"1_795_230_000.0": "0.0"})
    await read.run()
    await read.scope["everything"]("lake")
    assert re.findall(r"^(\d+) \d+ (orders\.eu\.\d+) ", said(), re.MULTILINE)[0] == ("1", "orders.eu.1")
    following = asyncio.create_task(read.scope["and_on"]("lake"))
    await printed(following, said, r"^20$")
    await client.publish("orders.eu.21", b"{}")
    await printed(following, said, r"^1$")
    following.cancel()
    await asyncio.wait([following])


async def test_requests(page, client, said):
    await make_orders(client)
    read = page("requests.md", {"from_sequence=1000": "from_sequence=10"})
    await read.run()
    assert said() == "abab\n"
    running = asyncio.create_task(read.run())
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                answer = await client.request("events.eu", b"new", timeout=PATIENCE)
                break
            except NoRespondersError:
                await asyncio.sleep(0.01)
    assert answer.data == b"seen"
    running.cancel()
    await asyncio.wait([running])
    await read.run()
    assert re.search(r"^13 b'{\"id\": 13", said(), re.MULTILINE)
    assert not re.search(r"^9 b", said(), re.MULTILINE)


async def test_restore(page, client, said):
    await archive_orders(client)
    read = page("restore.md", {"./archive": "lake"}, moment=datetime.now(UTC))
    await read.run()
    assert said().startswith("20 ")
    assert (await client.stream_info("ORDERS_THEN"))["state"]["messages"] == 20
    assert read.scope["done"].messages == 20


async def test_stores(page):
    read = page("stores.md", {"s3://lake/trial?endpoint=https://minio.example:9000": "trial"})
    await read.run()
    assert [path for path in Path("trial").rglob("*") if path.is_file()] == []


async def test_streams(page, client):
    read = page("streams.md", {"num_replicas=3": "num_replicas=1"})
    await read.run()
    assert (await client.stream_info("ORDERS"))["config"]["max_age"] == 7 * 86400 * 10**9
    assert (await client.consumer_info("ORDERS", "billing"))["config"]["filter_subject"] == "orders.eu.>"


async def test_table(page, client):
    await archive_orders(client)
    read = page("table.md", {"s3://lake/orders": "lake"})
    await read.run()
    assert read.scope["rows"]["sequence"].to_pylist() == list(range(1, 21))


async def test_testing(page, client, natty_name):
    read = page("testing.md")
    await read.run()
    await read.scope["test_an_order_is_stored"](client, natty_name)
    assert [message.data async for message in client.read((await stream_names(client.jetstream))[0])] == [b"{}"]

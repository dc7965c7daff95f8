"""The log shipper of examples/: what is in a host's log is in its file, each line once, whatever is killed."""

import asyncio
import logging
import os
import random
import secrets
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import log_shipping
import pytest
from log_shipper.consume import consume
from log_shipper.ledger import Ledger
from log_shipper.produce import produce
from log_shipper.settings import DAY, ConsumeSettings, ProduceSettings, Route, ShipperError, partition_of
from log_shipping import Host
from patient import PATIENCE, PATIENT, until

from natty import Natty
from natty.testing import NatsServer, ServerOptions

EXAMPLES = Path(__file__).parents[3] / "examples"
HOSTS = [f"web{number}.example.net" for number in range(50)]


class Shippers:
    """Producers and consumers as processes, killed and started again."""

    def __init__(self, shell, **settings):
        self.shell = shell
        self.subject = f"logs{secrets.token_hex(4)}"
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(EXAMPLES)]),
            "SHIPPER_SUBJECT": self.subject,
            "SHIPPER_DIRECTORY": "out",
            "SHIPPER_OUTPUT": "app",
            **settings,
        }

    def start(self, *command, **settings):
        return self.shell.execute([sys.executable, *command], **self.environment | settings)

    def shipper(self, program, **settings):
        return self.start("-m", "log_shipper", program, **settings)

    def produce_all(self, hosts):
        return self.start(log_shipping.__file__, *hosts)

    def consume(self, *partitions):
        return self.shipper("consume", SHIPPER_READ_PARTITIONS=",".join(map(str, partitions)))

    def killed_at(self, program, patch, **settings):
        """Run a program that kills itself where `patch`, a piece of Python, says `die()`; wait for that."""
        script = f"""
import os, signal, sys
from log_shipper.__main__ import main
def die(): os.kill(os.getpid(), signal.SIGKILL)
{patch}
sys.argv = ["shipper", {program!r}]
main()"""
        done = self.shell.finish(self.start("-c", script, **settings))
        assert done.status == -signal.SIGKILL, done.err

    def stop(self, processes):
        """Stop gracefully."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            done = self.shell.finish(process)
            assert (done.status, "Traceback" in done.err) == (0, False), done.err


def wait_for(hosts, within=2 * PATIENCE):
    """Wait until all that the hosts wrote has been received, then say whether that is what came."""
    deadline = time.monotonic() + within
    while any(len(host.received()) < len(host.written) for host in hosts) and time.monotonic() < deadline:
        time.sleep(0.05)
    for host in hosts:
        assert host.received() == host.written, host.name


@pytest.mark.parametrize(("lines", "kills"), [(5_000, 5), (100_000, 25)], ids=["5 000", "100 000"])
def test_every_line_arrives_once_and_in_order_however_often_shippers_are_killed(shell, tmp_path, lines, kills):
    chance = random.Random(lines)
    shippers = Shippers(shell, SHIPPER_PARTITIONS="4")
    hosts = [Host(tmp_path, name) for name in HOSTS]
    starts = [
        lambda: shippers.produce_all(HOSTS[:25]),
        lambda: shippers.produce_all(HOSTS[25:]),
        lambda: shippers.consume(0, 1),
        lambda: shippers.consume(2, 3),
    ]
    running = [start() for start in starts]
    for host in hosts:
        host.append(1)
    wait_for(hosts)  # what was rotated before a shipper's first start is not its affair
    for _ in range(kills):
        for host in hosts:
            host.append(lines // len(hosts) // kills)
        for host in chance.sample(hosts, 3):
            host.rotate()
        time.sleep(chance.uniform(0, 1))
        victim = chance.randrange(len(running))
        running[victim].kill()
        running[victim].communicate()
        running[victim] = starts[victim]()
    wait_for(hosts)
    shippers.stop(running)
    assert sum(host.received().count(b"\n") for host in hosts) == lines + len(hosts)


CONSUMER_DEATHS = {
    "the lines are on disk, and the ledger does not say so": """
from log_shipper import ledger
append = ledger._append
ledger._append = lambda *given: (append(*given), die())""",
    "the ledger says so, and nothing is acknowledged": """
from natty import Pull
Pull.ack = lambda *given: die()""",
}


@pytest.mark.parametrize("patch", CONSUMER_DEATHS.values(), ids=CONSUMER_DEATHS)
def test_a_consumer_killed_between_writing_and_acknowledging_writes_no_line_twice(shell, tmp_path, patch):
    shippers, host = Shippers(shell), Host(tmp_path, "web1")
    host.append(1000)
    producer = shippers.produce_all(["web1"])
    shippers.killed_at("consume", patch)
    assert host.received()
    consumer = shippers.consume(0)
    host.append(10)
    wait_for([host])
    shippers.stop([producer, consumer])


PRODUCER_DEATHS = {
    "before the bookmark is moved behind them": """
from log_shipper import produce
move, moves = produce.Bookmark.move, []
def moved(*given):
    moves.append(given)
    if len(moves) == 2: die()
    return move(*given)
produce.Bookmark.move = moved""",
    "while they are published": """
from natty import Publisher
publish, count = Publisher.publish, []
async def published(self, *given, **more):
    await publish(self, *given, **more)
    count.append(given)
    if len(count) == 500:
        await self._connection.flush(60)
        die()
Publisher.publish = published""",
}


@pytest.mark.parametrize("patch", PRODUCER_DEATHS.values(), ids=PRODUCER_DEATHS)
def test_a_producer_killed_after_publishing_ships_no_line_twice_even_when_ids_are_forgotten(
    shell, tmp_path, served, patch
):
    shippers, host = Shippers(shell), Host(tmp_path, "web1")
    stream = f"{shippers.subject.upper()}_p0"
    forgetful = {"subjects": [f"{shippers.subject}.p0.>"], "max_age": 7 * DAY, "duplicate_window": 0.1}
    served(lambda natty: natty.ensure_stream(stream, **forgetful))
    host.append(1000)
    shippers.killed_at("produce", patch, SHIPPER_FILE=str(host.file), HOSTNAME="web1")
    time.sleep(0.5)  # the server forgets the ids
    producer, consumer = shippers.produce_all(["web1"]), shippers.consume(0)
    host.append(10)
    wait_for([host])
    shippers.stop([producer, consumer])
    state = served(lambda natty: natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]
    assert state["messages"] == 1010


@asynccontextmanager
async def shipping(natty, tmp_path, hosts, **route):
    """Ship hosts' logs inside of this process; yield the route."""
    route = Route(subject=f"logs{secrets.token_hex(4)}", **route)
    stopping = asyncio.Event()
    directory = tmp_path / "out"
    to_files = ConsumeSettings(
        route=route, directory=directory, output="app-%Y%m%d", read_partitions=tuple(range(max(route.partitions, 1)))
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(consume(natty, to_files, stopping))
        for host in hosts:
            settings = ProduceSettings(route=route, file=host.file, host=host.name)
            group.create_task(produce(natty, settings, stopping))
        yield route
        await until(lambda: all(len(host.received()) >= len(host.written) for host in hosts))
        stopping.set()
    for host in hosts:
        assert host.received() == host.written


async def test_the_server_chooses_the_partition_in_one_stream(natty, tmp_path):
    hosts = [Host(tmp_path, name) for name in HOSTS[:8]]
    async with shipping(natty, tmp_path, hosts, partitions=3, server_side=True) as route:
        for host in hosts:
            host.append(20)
    answer = await natty.jetstream.request(f"STREAM.INFO.{route.stream(0)}", {"subjects_filter": ">"})
    subjects = answer["state"]["subjects"]
    expected = [(partition_of(f"{route.subject}.{host.name}", 3), host.name) for host in hosts]
    assert sorted(subjects) == sorted(f"{route.subject}.{number}.{name}" for number, name in expected)


async def test_each_partition_has_its_stream_by_the_hash_of_the_host_name(natty, tmp_path):
    hosts = [Host(tmp_path, name) for name in HOSTS[:8]]
    async with shipping(natty, tmp_path, hosts, partitions=3) as route:
        for host in hosts:
            host.append(20)
    for number in range(3):
        answer = await natty.jetstream.request(f"STREAM.INFO.{route.stream(number)}", {"subjects_filter": ">"})
        mine = [host.name for host in hosts if partition_of(host.name, 3) == number]
        assert sorted(answer["state"]["subjects"]) == [f"{route.subject}.p{number}.{name}" for name in sorted(mine)]


async def test_lines_whose_delivery_got_lost_are_written_in_their_place(natty, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "shipper")
    host = Host(tmp_path, "web1")
    async with shipping(natty, tmp_path, [host]) as route:
        host.append(10)
        await until(lambda: host.received() == host.written)
        thief = natty.pull(route.stream(0), "shipper-p0", max_messages=10)
        batches = thief.__aiter__()
        stolen = asyncio.ensure_future(anext(batches))
        while not stolen.done():
            host.append(10)
            await asyncio.sleep(0.05)
        thief.stop()
        await batches.aclose()
        host.append(10)
    assert "deliveries of" in caplog.text


async def test_a_subject_that_names_no_host_is_left_out_and_told(natty, tmp_path, caplog):
    host = Host(tmp_path, "web1")
    async with shipping(natty, tmp_path, [host]) as route:
        host.append(1)
        await until(lambda: host.received() == host.written)
        await natty.publish(f"{route.subject}.p0.web1/escaped", b"a line")
        host.append(1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["web1"]
    assert [path.name[:4] for path in (tmp_path / "out" / "web1").iterdir()] == ["app-"]
    assert "web1/escaped', which names no host" in caplog.text


async def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(natty, tmp_path):
    route = Route(subject=f"logs{secrets.token_hex(4)}")
    with Ledger(tmp_path, "app", route.stream(0)) as ledger:
        ledger.write([("web1", 0, b"a line")], 100)
    settings = ConsumeSettings(route=route, directory=tmp_path, output="app", read_partitions=(0,))
    with pytest.raises(ShipperError, match="ends at 0, and up to 100 is written: it was created again"):
        await consume(natty, settings, asyncio.Event())


async def test_no_line_is_lost_or_doubled_when_the_server_is_killed(tmp_path):
    host = Host(tmp_path, "web1")
    with NatsServer() as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty, shipping(natty, tmp_path, [host]):
            for _ in range(3):
                for _ in range(10):
                    host.append(1000)
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(server.kill)
                host.append(1000)
                await asyncio.to_thread(server.start)


async def test_a_consumer_removes_files_that_are_over_a_week_old(natty, tmp_path):
    route, stopping = Route(subject=f"logs{secrets.token_hex(4)}"), asyncio.Event()
    with Ledger(tmp_path, "app-%Y%m%d", route.stream(0)) as ledger:
        ledger.write([("web1", 0, b"a line of 1970")], 0)
    settings = ConsumeSettings(route=route, directory=tmp_path, output="app-%Y%m%d", read_partitions=(0,))
    await route.ensure(natty, 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(consume(natty, settings, stopping))
        await natty.publish(route.publish_on("web1"), b"a line of today")
        await until(lambda: [path.read_bytes() for path in (tmp_path / "web1").iterdir()] == [b"a line of today\n"])
        stopping.set()


async def test_each_target_of_the_series_is_a_copy_of_the_lines_of_its_own(shell, natty, tmp_path):
    shippers, host = Shippers(shell), Host(tmp_path, "web1")
    host.append(100)
    producer = shippers.shipper("produce", SHIPPER_FILE=str(host.file), HOSTNAME="web1")
    targets = {"out.logs": "out", "out.audit": "audit"}
    consumers = [
        shippers.shipper("consume", SHIPPER_STREAM_TARGET=target, SHIPPER_DIRECTORY=directory)
        for target, directory in targets.items()
    ]
    for directory in targets.values():
        await until(lambda folder=directory: host.received(folder) == host.written)
    stream = f"{shippers.subject.upper()}_p0"
    for target in targets:
        config = (await natty.consumer_info(stream, f"{target.replace('.', '_')}-p0"))["config"]
        assert "deliver_subject" not in config
    shippers.stop([producer, *consumers])


@pytest.mark.parametrize(
    ("programs", "days"),
    [
        ([("produce", "1d"), ("consume", ""), ("produce", "1d")], [1, 1, 1]),
        ([("consume", ""), ("produce", "1d"), ("consume", "1d"), ("produce", "")], [7, 7, 7, 7]),
        ([("consume", "1d"), ("produce", "2d"), ("consume", "1d"), ("produce", "")], [1, 2, 2, 2]),
    ],
    ids=["producer first", "consumer first", "longer"],
)
async def test_a_program_makes_the_retention_longer_and_ships_on_if_it_is_longer_than_set(
    shell, natty, tmp_path, programs, days
):
    shippers, host = Shippers(shell), Host(tmp_path, "web1")
    stream, kept = f"{shippers.subject.upper()}_p0", 0
    for (program, retention), wanted in zip(programs, days, strict=True):
        settings = {"SHIPPER_FILE": str(host.file), "HOSTNAME": "web1", "SHIPPER_RETENTION": retention}
        process, said = shippers.shipper(program, **settings), ""
        while " goes to " not in said:
            line = await asyncio.to_thread(process.stderr.readline)
            assert line, said
            said += line
        assert (await natty.stream_info(stream))["config"]["max_age"] == wanted * DAY * 1_000_000_000
        shippers.stop([process])
        too_long = bool(retention) and kept > int(retention[0])
        assert (f"natty stream edit {stream} --max-age {retention}" in said) == too_long, said
        kept = wanted


async def test_a_stream_that_keeps_lines_for_ever_is_left_so(natty, caplog):
    subject = f"logs{secrets.token_hex(4)}"
    route = Route(subject=subject, retention=DAY)
    name = await route.ensure(natty, 0)
    await natty.ensure_stream(name, max_age=0)
    assert not caplog.messages
    assert await route.ensure(natty, 0) == name
    assert (await natty.stream_info(name))["config"]["max_age"] == 0
    (warning,) = caplog.messages
    assert warning.startswith(f"stream {name} keeps lines for ever, longer than SHIPPER_RETENTION")


async def test_two_shippers_of_one_file_are_told(natty, tmp_path):
    host = Host(tmp_path, "web1")
    route = Route(subject=f"logs{secrets.token_hex(4)}")
    settings = ProduceSettings(route=route, file=host.file, host="web1")

    async def two():
        async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE):
            for _ in range(2):
                group.create_task(produce(natty, settings, asyncio.Event()))
            while True:
                host.append(1)
                await asyncio.sleep(0.01)

    with pytest.raises(ExceptionGroup) as told:
        await two()
    assert "another shipper ships" in str(told.value.exceptions[0])


def test_a_file_that_vanishes_ends_the_shipper_when_all_of_it_is_shipped(shell, tmp_path):
    shippers, host = Shippers(shell), Host(tmp_path, "web1")
    host.append(100)
    settings = {"SHIPPER_FILE": str(host.file), "HOSTNAME": "web1", "SHIPPER_PATIENCE": "1"}
    producer, consumer = shippers.shipper("produce", **settings), shippers.consume(0)
    wait_for([host])
    host.append(10)
    host.file.unlink()
    done = shell.finish(producer)
    assert (done.status, "the lines that could be read are shipped" in done.complaint) == (1, True)
    wait_for([host])
    host.file.touch()
    producer = shippers.shipper("produce", **settings)
    host.append(10)
    wait_for([host])
    shippers.stop([producer, consumer])


def test_bad_input_ends_in_one_sentence(shell, tmp_path):
    shippers = Shippers(shell)
    host = Host(tmp_path, "web1")
    mine = {"SHIPPER_FILE": str(host.file), "HOSTNAME": "web1"}
    missing = {"SHIPPER_FILE": str(tmp_path / "none.log"), "SHIPPER_PATIENCE": "0"}
    full = tmp_path / "full" / "web1"
    full.mkdir(parents=True)
    for day in range(2):
        name = time.strftime("app-%Y%m%d0000", time.gmtime(time.time() + day * DAY))
        (full / name).symlink_to("/dev/full")
    host.append(1)
    with NatsServer(ServerOptions(tls=False, jetstream=False)) as bare:
        plain = {"NATS_URL": bare.url, "NATS_CA": "", "NATS_CERT": "", "NATS_KEY": ""}
        producer = shippers.shipper("produce", **mine)
        started = {
            "SHIPPER_FILE is not set": (2, shippers.shipper("produce")),
            "can't be part of a subject": (2, shippers.shipper("produce", **mine | {"HOSTNAME": "web *"})),
            "there has been no file": (1, shippers.shipper("produce", **mine | missing)),
            "No space left on device; what is not on disk stays in the stream": (
                1,
                shippers.shipper("consume", SHIPPER_DIRECTORY="full"),
            ),
            "JetStream": (1, shippers.shipper("produce", **mine | plain)),
        }
        for complaint, (status, process) in started.items():
            done = shell.finish(process)
            assert (done.status, complaint in done.complaint) == (status, True), done.err
        shippers.stop([producer])

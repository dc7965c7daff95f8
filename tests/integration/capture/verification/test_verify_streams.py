"""Each way that a sequence can take out of a stream, and what verify says of it."""

import asyncio
import contextlib
import time

import pytest
from archiving import compact_once, store_all, sweep_once
from patient import FILLING, PATIENCE

from capture.archive.heads import COMPACTION, SWEEP, TermHead
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.errors import CaptureError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.table_commits import TableLeading
from capture.stores import FileStore, open_store
from capture.testing import ArrowEngine
from capture.verification.check import check
from natty import StreamNotFoundError


@pytest.fixture
def configured(natty_name, tmp_path):
    """Return the configuration and the store of an archive of its own."""

    def configure(**settings):
        name = natty_name("verified")
        flags = {"stream": name, "store": str(tmp_path / name), "decoder": "json", **settings}
        config = load(None, flags, environment={})
        return config, open_store(config.store)

    return configure


async def publish(natty, stream, count, tokens=("eu",), payload=b'{"n":1}'):
    async with natty.publisher(stream, **FILLING) as publisher:
        for number in range(count):
            await publisher.publish(f"{stream}.{tokens[number % len(tokens)]}", payload)
        await publisher.flush()


async def make(natty, config, **settings):
    await natty.ensure_stream(config.stream, subjects=[f"{config.stream}.*"], **settings)


async def delete(natty, stream, sequence):
    await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


async def state_of(natty, stream):
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]


def counted(checked):
    """Return the sizes of the sets that are not empty."""
    verdict = checked.verdict.as_dict()
    names = (
        "stored", "undecodable", "deleted", "expired", "missing", "unwanted", "unseen", "unproven", "unexplained",
        "unknown",
    )  # fmt: skip
    return {name: verdict[name] for name in names if verdict[name]}


async def test_deleted_purged_undecodable_stored_and_what_is_on_its_way(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 6)
    await publish(natty, config.stream, 1, payload=b"no json")
    await publish(natty, config.stream, 13)
    await natty.jetstream.request(f"STREAM.PURGE.{config.stream}", {"seq": 3})
    await delete(natty, config.stream, 5)
    await store_all(natty, config, store)
    await delete(natty, config.stream, 10)  # it is stored
    await publish(natty, config.stream, 3)
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 16, "undecodable": 1, "deleted": 1, "expired": 2}
    assert (checked.status, checked.ok, checked.unacknowledged) == (0, True, 3)
    assert checked.sentence().endswith("nothing is missing; 3 newer messages are not acknowledged yet")


async def test_what_was_acknowledged_and_is_not_stored_is_missing(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 10)
    await store_all(natty, config, store, leave_out={4, 5, 9})
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 7, "missing": 3}
    assert checked.status == 3
    assert checked.as_dict()["missing_runs"] == [[4, 5], [9, 9]]


async def test_what_the_limits_of_a_stream_removed_before_capture_saw_it(natty, configured):
    config, store = configured()
    await make(natty, config, max_msgs=5)
    await publish(natty, config.stream, 20)
    await store_all(natty, config, store)
    assert counted(await check(natty, config, store)) == {"stored": 5, "expired": 15}
    await publish(natty, config.stream, 8)  # 21 to 23 go before capture is given them
    assert counted(await check(natty, config, store)) == {"stored": 5, "expired": 15}  # not compared yet
    await store_all(natty, config, store)
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 10, "expired": 18}
    assert checked.status == 0


async def test_what_came_of_age_before_capture_was_given_it_certainly_did_so(natty, configured):
    config, store = configured()
    await make(natty, config, max_age=0.5)
    await store_all(natty, config, store)  # the durable is there, and nothing yet to store
    await publish(natty, config.stream, 4)
    async with asyncio.timeout(PATIENCE):
        while (await state_of(natty, config.stream))["messages"]:
            await asyncio.sleep(0.05)
    checked = await check(natty, config, store)
    assert counted(checked) == {"expired": 4, "unseen": 4}
    assert checked.status == 0


async def test_other_subjects_and_what_was_before_the_start_are_not_missing(natty, configured):
    config, store = configured(filter_subjects=[], start=7)
    await make(natty, config)
    await publish(natty, config.stream, 10)
    await store_all(natty, config, store)
    assert counted(await check(natty, config, store)) == {"stored": 4, "unwanted": 6}


async def test_of_the_captured_subjects_what_is_not_stored_is_missing(natty, configured):
    config, store = configured()
    config = load(
        None,
        {"stream": config.stream, "store": config.store, "filter_subjects": [f"{config.stream}.eu"]},
        environment={},
    )
    await make(natty, config)
    await publish(natty, config.stream, 10, tokens=("eu", "us"))
    await store_all(natty, config, store, leave_out={5})
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 4, "unwanted": 5, "missing": 1}
    assert checked.as_dict()["missing_runs"] == [[5, 5]]


async def test_a_work_queue_deletes_what_is_stored_and_of_the_rest_nothing_is_proven(natty, configured):
    config, store = configured()
    await make(natty, config, retention="workqueue")
    await publish(natty, config.stream, 10)
    await delete(natty, config.stream, 4)
    await store_all(natty, config, store)
    assert (await state_of(natty, config.stream))["messages"] == 0
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 9, "expired": 1, "unproven": 1, "unexplained": 1}
    assert checked.status == 1
    await natty.ensure_stream(config.stream, max_age=3600.0, allow_destructive=True)
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 9, "expired": 1, "unproven": 1}
    assert checked.status == 0
    await sweep_once(natty, config, store)  # the archive knows by now that the message can't be an hour old
    for checked in (await check(natty, config, store), await check(None, config, store)):
        assert counted(checked) == {"stored": 9, "expired": 1, "unproven": 1, "unexplained": 1}
    await natty.ensure_stream(config.stream, max_age=0.1, duplicate_window=0.1, allow_destructive=True)
    await asyncio.sleep(0.2)
    assert (await check(natty, config, store)).status == 0


async def test_what_another_client_acknowledged_in_a_work_queue_did_not_expire(natty, configured):
    config, store = configured()
    await make(natty, config, retention="workqueue")
    await publish(natty, config.stream, 4)
    await natty.jetstream.request(f"STREAM.PURGE.{config.stream}")  # before capture begins: its durable claims all
    await publish(natty, config.stream, 3)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 5)
    pull, taken = natty.pull(config.stream, config.durable, max_messages=5), 0
    async for batch in pull:
        for message in batch:
            message.ack()
        if (taken := taken + len(batch)) >= 5:
            pull.stop()
    await natty.connection.flush()
    async with asyncio.timeout(PATIENCE):
        while (await state_of(natty, config.stream))["messages"]:
            await asyncio.sleep(0.05)
    checked = await check(natty, config, store)
    assert counted(checked) == {"stored": 3, "expired": 9, "unproven": 9, "unexplained": 9}
    assert checked.status == 1
    assert "9 removed from the stream" in checked.sentence()
    assert "9 messages were removed from the stream without being captured (1–4, 8–12)" in checked.sentence()
    assert checked.as_dict()["unexplained_runs"] == [[1, 4], [8, 12]]
    partly = await check(natty, config, store, accepted=Sequences.from_iterable([1, 2, 3, 4, 8, 9, 12]))
    assert (partly.as_dict()["unexplained_runs"], partly.status) == ([[10, 11]], 1)
    well = await check(natty, config, store, accepted=Sequences.from_range(1, 12))
    assert counted(well) == {"stored": 3, "expired": 9, "unproven": 9}
    assert well.status == 0


async def test_a_stream_that_is_gone_is_compared_with_what_was_recorded_of_it(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 10)
    await delete(natty, config.stream, 3)
    await store_all(natty, config, store, leave_out={8})
    await sweep_once(natty, config, store)
    await natty.jetstream.request(f"STREAM.DELETE.{config.stream}")
    for checked in (await check(natty, config, store), await check(None, config, store)):
        assert counted(checked) == {"stored": 8, "deleted": 1, "missing": 1}
        assert checked.as_dict()["missing_runs"] == [[8, 8]]
        assert "compared with the recording of 20" in checked.sentence()
        assert checked.status == 3
    assert f"the stream {config.stream} is gone" in (await check(natty, config, store)).sentence()


async def test_what_came_after_the_consumer_was_deleted_was_never_acknowledged_and_is_not_missing(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 10)
    await store_all(natty, config, store)
    await sweep_once(natty, config, store)
    await natty.jetstream.request(f"CONSUMER.DELETE.{config.stream}.{config.durable}")
    await publish(natty, config.stream, 5)
    checked = await check(natty, config, store)
    assert (counted(checked), checked.unacknowledged, checked.status) == ({"stored": 10}, 5, 1)
    assert "capture's consumer capture is gone, and its progress is only known up to sequence 10" in checked.uncompared


async def test_a_stream_that_neither_the_server_nor_the_archive_knows_is_an_error(natty, configured):
    config, store = configured()
    with pytest.raises(StreamNotFoundError):
        await check(natty, config, store)


async def test_a_stream_that_was_made_again_is_another_one(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 3)
    await store_all(natty, config, store)
    await natty.jetstream.request(f"STREAM.DELETE.{config.stream}")
    await make(natty, config)
    with pytest.raises(CaptureError, match="it is another stream"):
        await check(natty, config, store)
    assert counted(await check(None, config, store)) == {"stored": 3}


async def test_a_damaged_manifest_is_damage(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 3)
    await store_all(natty, config, store)
    report = await sweep_once(natty, config, store)
    data = await store.get(report.head.path)
    await store.put(report.head.path, data.replace(b'"count":3', b'"count":2'), if_absent=False)
    checked = await check(natty, config, store)
    assert checked.status == 3
    named = [one for one in checked.verdict.problems if report.head.path in one]
    assert named == [f"{report.head.path} was changed: its SHA-256 is not the one that the head names"]


class Meanwhile(FileStore):
    """A store in which something happens before the first object is read."""

    def __init__(self, store, happens):
        super().__init__(store.root)
        self._happens = happens

    async def get_range(self, path, start, length):
        if self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return await super().get_range(path, start, length)


async def test_a_block_that_is_compacted_and_removed_before_it_is_read_is_not_missing(natty, configured):
    config, store = configured(**{"sweep.grace": 0.001})
    await make(natty, config)
    await publish(natty, config.stream, 5)
    await store_all(natty, config, store)
    await sweep_once(natty, config, store)

    async def compacted_and_removed():
        await compact_once(natty, config, store)
        for _ in range(2):  # one lets it go, the other removes it
            await sweep_once(natty, config, store)
        assert await store.list("blocks/") == []

    checked = await check(natty, config, Meanwhile(store, compacted_and_removed))
    assert checked.status == 0, checked.sentence()
    assert counted(checked) == {"stored": 5}
    assert not checked.verdict.waiting


async def test_what_is_captured_while_the_archive_is_read_is_not_missing(natty, configured):
    config, store = configured()
    await make(natty, config)
    await publish(natty, config.stream, 5)
    await store_all(natty, config, store)

    async def captured():
        await publish(natty, config.stream, 4)
        await store_all(natty, config, store)

    checked = await check(natty, config, Meanwhile(store, captured))
    assert checked.status == 0, checked.sentence()
    assert counted(checked) == {"stored": 5}
    assert counted(await check(natty, config, store)) == {"stored": 9}


@pytest.mark.long
async def test_while_a_node_captures_and_sweeps_and_another_compacts_nothing_is_said_to_be_missing(fleet):
    """Objects are removed 3 s after they were compacted, so some may go while they are looked at."""
    config = fleet.configure(limits__max_age=0.2, limits__max_messages=200, sweep__every=0.1, sweep__grace=3.0)
    loaded, store = load(config, environment={}), open_store(str(fleet.store))
    policy = Policy(min_files=2, max_wait=0.0, max_groups=1000)
    compactions, elected = [], asyncio.Event()

    async def compacting(term):
        elected.set()
        head, reader = TermHead(term, COMPACTION), SWEEP.reader(fleet.natty, loaded.name)
        while True:
            with contextlib.suppress(CaptureError):  # no manifest yet
                leading = TableLeading(store, head, reader, grace=loaded.sweep.grace)
                done = await compact(leading, ArrowEngine(), policy, now=time.time())
                compactions.append(done.outputs)
            await asyncio.sleep(0.1)

    office = fleet.natty.election(COMPACTION.election(loaded.name), lease=PATIENCE)
    leading = asyncio.create_task(office.run(compacting))
    async with asyncio.timeout(PATIENCE):
        await elected.wait()
    fleet.start("a", config)
    published, checks, done = 0, [], asyncio.Event()

    async def publishing():
        nonlocal published
        while len(checks) < 5 or sum(compactions) < 6:
            if published < 1200 * (len(checks) + 1):
                await fleet.publish(b'{"n":1}' for _ in range(300))
                published += 300
            await asyncio.sleep(0.1)
        done.set()

    task = asyncio.create_task(publishing())
    await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > 0)
    while not done.is_set():
        checked = await check(fleet.natty, loaded, store)
        assert checked.status == 0, checked.sentence()
        checks.append(len(checked.verdict.stored))
    await task
    await fleet.until_all_acked(published)
    checked = await check(fleet.natty, loaded, store)
    assert counted(checked) == {"stored": published}
    print(f"{len(checks)} checks while {published} messages were captured, {sum(compactions)} table files written")
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)

"""A stream is captured, its server is lost, and another one gets it back from the archive: exactly."""

import asyncio
import shutil
import time
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from archiving import compact_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patient import NEVER, PATIENCE, PATIENT
from restoring import (
    Capturing,
    all_kinds,
    configured,
    delete,
    dumped,
    floor_of,
    info,
    planned,
    positions,
    read_some,
    restored,
    send,
)

import capture
from capture.errors import ConfigError, RestoreError, RestoreRefusedError
from capture.restoring import rebuild
from capture.restoring.archive import COLUMNS, ArchiveWriter
from capture.restoring.uptake import stream_there, upload
from natty import Natty
from natty.config.units import parse_time, show_time
from natty.streams.listing import all_streams
from natty.testing import NatsServer


@pytest.fixture(scope="module")
def other_server(natty_tls, nats_server_binary, tmp_path_factory):
    """Where streams are restored: a server that has never seen them."""
    with NatsServer(
        folder=tmp_path_factory.mktemp("other"), tls_files=natty_tls, binary=nats_server_binary, name="other"
    ) as server:
        yield server


@pytest.fixture
async def other(other_server):
    async with Natty(**other_server.connect_options(), **PATIENT) as client:
        yield client


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_every_message_gap_and_consumer_is_there_again_exactly(natty, other, natty_name, tmp_path, storage):
    name = natty_name("exactly")
    await all_kinds(natty, name, storage=storage, allow_msg_ttl=True, metadata={"who": "tests"}, max_msgs=1000)
    await send(natty, f"{name}.ttl", b"lives", b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n")
    await send(natty, f"{name}.tail", b"goes")
    await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
    await natty.ensure_consumer(name, "filtered", filter_subjects=[f"{name}.b.*"], ack_wait=NEVER)
    assert await read_some(natty, name, "reader", 3) == [3, 4, 5]
    assert await read_some(natty, name, "filtered", 2) == [3, 4]
    captured = Capturing(natty, name, tmp_path)
    await captured.capture()
    await delete(natty, name, 6, 16)
    await captured.capture()  # what was deleted meanwhile
    before, config, places = await dumped(natty, name), await configured(natty, name), await positions(natty, name)
    assert before[0]["num_deleted"] == 3

    progress = []
    done = await restored(other, captured, on_progress=lambda *told: progress.append(told))

    assert await dumped(other, name) == before
    assert await configured(other, name) == config
    assert await positions(other, name) == places
    assert (done.messages, done.kept) == (before[0]["messages"],) * 2
    assert progress[-1] == (done.messages, done.messages)
    assert await read_some(other, name, "reader", 2) == [7, 8]
    assert await read_some(other, name, "filtered", 2) == [5, 7]
    assert await send(other, f"{name}.next") == 17


async def test_a_stream_of_interest_goes_on_where_it_was(natty, other, natty_name, tmp_path):
    name = natty_name("interest")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], retention="interest")
    captured = Capturing(natty, name, tmp_path)
    await natty.ensure_consumer(name, "worker", ack_wait=NEVER, filter_subjects=[f"{name}.a"])
    await captured.capture()  # from here on there is a consumer that wants the messages
    for number in range(6):
        await send(natty, f"{name}.{'ab'[number % 2]}", b"%d" % number)
    await captured.capture()
    assert await read_some(natty, name, "worker", 1) == [1]
    await captured.capture()
    before, config = await dumped(natty, name), await configured(natty, name)
    assert list(before[1]) == [3, 5]
    await restored(other, captured)
    assert await dumped(other, name) == before
    assert await configured(other, name) == config
    assert await read_some(other, name, "worker", 1) == [3]


async def test_a_work_queue_gets_back_what_was_in_it_or_all_that_went_through_it(natty, other, natty_name, tmp_path):
    name = natty_name("queue")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], retention="workqueue")
    captured = Capturing(natty, name, tmp_path)
    for number in range(6):
        await send(natty, f"{name}.a", b"%d" % number)
    messages = (await dumped(natty, name))[1]
    await captured.capture()
    done = await restored(other, captured)
    assert (done.messages, (await info(other, name))["state"]["last_seq"]) == (0, 6)
    assert (await configured(other, name)) == await configured(natty, name)
    await other.delete_stream(name)
    await restored(other, captured, everything=True, consumers=False)
    assert (await dumped(other, name))[1] == messages


async def test_limits_are_lifted_and_put_back(natty, other, natty_name, tmp_path):
    name = natty_name("limited")
    limits = {"max_age": NEVER, "max_msgs": 5, "max_msgs_per_subject": 2, "max_msg_size": 100, "max_bytes": 10_000}
    await natty.ensure_stream(name, subjects=[f"{name}.*"], **limits)
    captured = Capturing(natty, name, tmp_path)
    for number in range(5):
        await send(natty, f"{name}.{number}", b"%d" % number)
    await captured.capture()
    await natty.jetstream.request(f"STREAM.PURGE.{name}", {"seq": 4})
    for number in range(2):
        await send(natty, f"{name}.{number}", b"more")
    await captured.capture()
    before, config = await dumped(natty, name), await configured(natty, name)
    await restored(other, captured)
    assert (await dumped(other, name), await configured(other, name)) == (before, config)
    await other.delete_stream(name)
    done = await restored(other, captured, start=1)
    assert (done.messages, done.kept) == (7, 7)  # all came in; five of them may stay
    assert list((await dumped(other, name))[1]) == [3, 4, 5, 6, 7]
    assert await configured(other, name) == config


async def test_what_is_too_old_for_the_stream_comes_in_and_then_goes_as_the_plan_said(
    natty, other, natty_name, tmp_path
):
    name = natty_name("old")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], max_age=NEVER)
    captured = Capturing(natty, name, tmp_path)
    await send(natty, f"{name}.a", b"old")
    await captured.capture()
    config = (await info(natty, name))["config"]
    await natty.jetstream.request(f"STREAM.UPDATE.{name}", config | {"max_age": 10**8, "duplicate_window": 10**8})
    await captured.capture()
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, name))["state"]["messages"]:
            await asyncio.sleep(0.02)
    plan = await planned(other, captured, start=1)
    assert [one for one in plan.not_kept if one.startswith("at least 1 message is older than the stream's max_age")]
    done = await restored(other, captured, start=1)
    assert (done.messages, done.kept) == (1, 1)
    async with asyncio.timeout(PATIENCE):
        while (await info(other, name))["state"]["messages"]:
            await asyncio.sleep(0.02)
    assert await dumped(other, name) == await dumped(natty, name)


async def test_a_message_whose_time_to_live_is_over_is_a_gap_and_the_report_says_so(natty, other, natty_name, tmp_path):
    name = natty_name("ttl")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], allow_msg_ttl=True)
    captured = Capturing(natty, name, tmp_path)
    for header in (b"", b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n", b"NATS/1.0\r\nNats-TTL: never\r\n\r\n"):
        await send(natty, f"{name}.a", b"payload", header)
    await captured.capture()
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, name))["state"]["messages"] > 2:
            await asyncio.sleep(0.05)
    done = await restored(other, captured)
    assert (done.messages, done.kept) == (3, 2)
    assert done.not_kept[0].startswith("1 message was left out by the server")
    assert await dumped(other, name) == await dumped(natty, name)


@pytest.mark.parametrize("state", ["never used", "purged", "of one deleted message"])
async def test_an_empty_stream_is_restored_with_its_next_sequence(natty, other, natty_name, tmp_path, state):
    name = natty_name("empty")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path)
    if state != "never used":
        for _ in range(3 if state == "purged" else 1):
            await send(natty, f"{name}.a")
    await captured.capture()
    if state == "purged":
        await natty.jetstream.request(f"STREAM.PURGE.{name}")
    elif state != "never used":
        await delete(natty, name, 1)
    await captured.capture()
    before = await dumped(natty, name)
    await restored(other, captured)
    if state != "never used":  # of such a stream the server tells that sequence 0 is deleted
        assert await dumped(other, name) == before
    assert await send(other, f"{name}.a") == before[0]["last_seq"] + 1


async def test_the_python_api_restores_the_only_stream_of_a_folder_and_may_be_stopped_by_the_plan(
    natty, other, natty_name, tmp_path
):
    name = natty_name("api")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path)
    for number in range(3):
        await send(natty, f"{name}.a", b"%d" % number)
    await captured.capture()

    def stop(plan):
        raise KeyError(plan.messages)

    with pytest.raises(KeyError, match="3"):
        await capture.restore(other, captured.config.store, on_plan=stop)
    done = await capture.restore(other, captured.config.store, start=datetime(2020, 1, 1, tzinfo=UTC), name=f"{name}_2")
    assert (done.plan.name, done.kept) == (f"{name}_2", 3)
    assert await dumped(other, f"{name}_2") == await dumped(natty, name)


async def test_the_python_api_takes_a_path_or_a_store_and_a_time_to_the_nanosecond(natty, other, natty_name, tmp_path):
    name = natty_name("api")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path)
    for number in range(3):
        await send(natty, f"{name}.a", b"%d" % number)
    await captured.capture()
    messages = (await dumped(natty, name))[1]
    archives = (Path(captured.config.store), captured.store, captured.config, captured.config.store)
    for number, archive in enumerate(archives):
        done = await capture.restore(other, archive, at=messages[2]["time"], name=f"{name}_{number}", detached=True)
        assert (done.plan.last, done.kept) == (2, 2)
        assert [one.sequence async for one in capture.read(archive, since=messages[2]["time"])] == [2, 3]
        before = parse_time(messages[2]["time"]) - 1
        assert [one.sequence async for one in capture.read(archive, until=show_time(before))] == [1]
    with pytest.raises(ConfigError, match="give a time and its zone"):
        await capture.restore(other, captured.store, at="yesterday")


async def test_a_stream_that_the_server_does_not_have_as_a_whole_is_told(natty, natty_name):
    name = natty_name("part")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    await stream_there(natty, name, 0, PATIENCE)
    await send(natty, f"{name}.a")
    await stream_there(natty, name, 1, PATIENCE)
    await stream_there(natty, name, 1, PATIENCE, replicas=0)  # as a record of somebody else may say it
    with pytest.raises(
        RestoreError, match=r"up to sequence 2, but within 0\.5 s the server reported: (sequences 1 to 1|nothing)"
    ):
        await stream_there(natty, name, 2, 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "ndjson", "compression": "zstd"},
        {"format": "raw", "compression": "gzip", "partition": "subject:2"},
        {"format": "parquet", "partition": "subject:2"},
        {"format": "ndjson", "compression": "snappy", "encrypt": True},
        {"format": "parquet", "encrypt": True},
    ],
    ids=lambda settings: "-".join(str(one) for one in settings.values()),
)
async def test_blocks_of_every_format_and_the_table_give_the_same_stream(
    natty, other, natty_name, tmp_path, monkeypatch, settings
):
    monkeypatch.setenv("CAPTURE_KEYS", "ours:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    name = natty_name("formats")
    await all_kinds(natty, name)
    captured = Capturing(natty, name, tmp_path, **settings)
    await captured.capture()
    if settings == {"format": "parquet", "partition": "subject:2"}:
        await compact_once(natty, captured.config, captured.store)
        assert await captured.store.list("table/")
    await send(natty, f"{name}.later", b"after the compaction")
    await captured.capture()
    before = await dumped(natty, name)
    await restored(other, captured)
    assert await dumped(other, name) == before


async def test_parts_of_a_stream_by_sequence_time_and_subject(natty, other, natty_name, tmp_path):
    name = natty_name("parts")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path)
    for number in range(9):
        await send(natty, f"{name}.{'abc'[number % 3]}", b"%d" % number)
    await captured.capture()
    await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
    await read_some(natty, name, "reader", 5)
    await captured.capture()
    messages = (await dumped(natty, name))[1]

    async def part(**options):
        part_name = natty_name("part")  # a server may find files of a deleted stream of the same name
        await restored(other, captured, name=part_name, **options)
        state, found = await dumped(other, part_name)
        floor = await floor_of(other, part_name, "reader")
        await other.delete_stream(part_name)
        assert found == {sequence: messages[sequence] for sequence in found}
        return list(found), (state["first_seq"], state["last_seq"]), floor

    assert await part(to_sequence=4) == ([1, 2, 3, 4], (1, 4), 4)
    assert await part(start=3, to_sequence=5) == ([3, 4, 5], (3, 5), 5)
    assert await part(subjects=(f"{name}.a", f"{name}.c")) == ([1, 3, 4, 6, 7, 9], (1, 9), 5)
    sixth = parse_time(messages[6]["time"])
    assert await part(start_ns=sixth) == ([6, 7, 8, 9], (6, 9), 5)
    with pytest.raises(RestoreRefusedError, match=f"no message of {name} matches the request"):
        await restored(other, captured, subjects=("elsewhere.>",))
    with pytest.raises(RestoreRefusedError, match="no message of"):
        await restored(other, captured, start=10)


async def test_a_stream_as_it_was_at_a_moment_with_the_configuration_and_the_consumers_of_then(
    natty, other, natty_name, tmp_path
):
    name = natty_name("then")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], max_msgs=100)
    captured = Capturing(natty, name, tmp_path)
    for number in range(4):
        await send(natty, f"{name}.a", b"%d" % number)
    await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
    await read_some(natty, name, "reader", 2)
    await captured.capture()
    before, config, places = await dumped(natty, name), await configured(natty, name), await positions(natty, name)
    moment = time.time_ns()
    await send(natty, f"{name}.a", b"later")
    await natty.jetstream.request(f"STREAM.UPDATE.{name}", config | {"max_msgs": 50})
    await delete(natty, name, 2)
    await read_some(natty, name, "reader", 1)
    await captured.capture()
    await restored(other, captured, at_ns=moment)
    assert (await dumped(other, name), await configured(other, name)) == (before, config)
    assert await positions(other, name) == places
    await other.delete_stream(name)
    await restored(other, captured)
    assert (await dumped(other, name)) == await dumped(natty, name)


WORDS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters=".*>\x7f"), min_size=1, max_size=8
)
HEADER = st.tuples(
    st.from_regex(rb"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True), st.from_regex(rb"[ -~\xff]{0,9}", fullmatch=True)
)
ANY = st.lists(
    st.tuples(
        st.integers(1, 500),
        st.integers(1, 4 * 10**18),
        st.lists(WORDS, min_size=1, max_size=3).map(".".join),
        st.lists(HEADER, max_size=3),
        st.binary(max_size=200),
    ),
    unique_by=lambda one: one[0],
    max_size=25,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ANY, st.integers(0, 5))
async def test_whatever_the_messages_are_the_server_has_exactly_them(other, natty_name, messages, tail):
    name, messages = natty_name("any"), sorted(messages)
    blocks = [
        b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n" if pairs else None
        for *_, pairs, _ in messages
    ]
    columns = (
        [one[0] for one in messages],
        [one[1] for one in messages],
        [one[2].encode() for one in messages],
        blocks,
        [one[4] for one in messages],
    )
    rows = pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
    )
    first, last = (columns[0][0], columns[0][-1] + tail) if messages else (tail + 1, tail) if tail else (0, 0)
    state = {"messages": len(messages), "bytes": 10_000, "first_seq": first, "last_seq": last}
    writer = ArchiveWriter(now_ns=time.time_ns())

    async def pieces():
        yield writer.begin(state, [])
        yield writer.add(rows.slice(0, 7))
        yield writer.add(rows.slice(7))
        yield writer.end()

    await upload(other, {"name": name, "subjects": [name], "storage": "memory"}, state, pieces())
    told, found = await dumped(other, name)
    await other.delete_stream(name)
    assert (told["messages"], told["last_seq"]) == (len(messages), last)
    assert [
        (
            one["seq"],
            parse_time(one["time"]),
            one["subject"],
            b64decode(one.get("hdrs", "")) or None,
            b64decode(one.get("data", "")),
        )
        for one in found.values()
    ] == [(one[0], one[1], one[2], block, one[4]) for one, block in zip(messages, blocks, strict=True)]


def blocked_folder(server, stream):
    """Make a folder that a server needs when it deletes a stream, so that the stream's files stay."""
    [streams] = (server.folder / "jetstream").rglob("streams")
    blocked = streams / f".{stream}"
    blocked.mkdir()
    (blocked / "file").touch()
    return blocked


@pytest.mark.parametrize("old", [3, 60], ids=["fewer than are restored", "more than are restored"])
async def test_files_of_a_deleted_stream_are_told_and_a_second_try_restores_the_archive(
    natty, other, other_server, natty_name, tmp_path, monkeypatch, old
):
    """The server keeps the files of a stream that it deletes while it removes an earlier one of that name."""
    name = natty_name("files")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path)
    for number in range(9):
        await send(natty, f"{name}.a", b"%d" % number)
    await captured.capture()
    wanted = await dumped(natty, name)
    await other.ensure_stream(name, subjects=[f"{name}.*"])
    for _ in range(old):
        await send(other, f"{name}.a", b"old")
    blocked = blocked_folder(other_server, name)
    await other.delete_stream(name)
    monkeypatch.setattr(rebuild, "REMOVED_WITHIN", 0.0)
    with pytest.raises(RestoreError, match=f"The server still has files of a deleted stream {name}, .*: restore again"):
        await restored(other, captured)
    assert name not in [one["config"]["name"] for one in (await all_streams(other.jetstream)).found]
    give_up, tries = rebuild.give_up, []

    async def unblock(*given):
        tries.append(given)
        shutil.rmtree(blocked)  # as the server does in the background
        await give_up(*given)

    monkeypatch.setattr(rebuild, "give_up", unblock)
    await restored(other, captured)
    assert len(tries) == 1
    assert await dumped(other, name) == wanted

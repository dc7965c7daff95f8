"""What `ensure_stream` and `ensure_consumer` change, and what they do while others are at it, or nobody answers."""

import asyncio
import os

import pytest
from patient import PATIENCE, PATIENT, until

from natty import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    JetStreamError,
    Natty,
    NotConnectedError,
    RequestTimeoutError,
    StreamExistsError,
    UnsupportedError,
)
from natty.errors import StreamNotFoundError
from natty.streams import Risk, plan_consumer, plan_stream
from natty.streams import ensure as module
from natty.streams.listing import all_consumers, all_streams
from natty.testing import NatsServer


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("ENSURED")
    await natty.ensure_stream(name, subjects=[f"{name}.a"], max_age=3600, max_msgs=100, metadata={"team": "a"})
    return name


async def config(natty, stream):
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]


def pause(server):
    """Freeze a server and wait until the last of its threads has stopped: it answers no more."""
    server.pause()
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)


async def test_what_is_safe_is_changed_and_the_rest_is_kept(natty, stream):
    await natty.publish(f"{stream}.a", b"kept")
    before = await config(natty, stream)
    wanted = {"subjects": [f"{stream}.>"], "max_age": 7200, "max_msgs": -1, "allow_direct": True, "description": "new"}
    got = await natty.ensure_stream(stream, **wanted, metadata={"owner": "b"})
    after = await config(natty, stream)
    assert got == after
    changed = {"subjects", "max_age", "max_msgs", "allow_direct", "description", "metadata"}
    assert {name for name in before | after if before.get(name) != after.get(name)} == changed
    assert (after["subjects"], after["max_age"], after["max_msgs"]) == ([f"{stream}.>"], 7200 * 10**9, -1)
    assert (after["metadata"]["team"], after["metadata"]["owner"]) == ("a", "b")
    assert (await natty.publish(f"{stream}.b", b"2")).seq == 2
    assert (await natty.jetstream.read(stream, sequence=1)).data == b"kept"


async def test_what_is_destructive_is_changed_only_when_allowed(natty, stream):
    with pytest.raises(StreamExistsError, match=r"max_msgs is 100, wanted 5 \(destructive"):
        await natty.ensure_stream(stream, max_msgs=5, description="new")
    assert "description" not in await config(natty, stream)
    await natty.ensure_stream(stream, allow_destructive=True, max_msgs=5, description="new")
    assert ((await config(natty, stream))["max_msgs"], (await config(natty, stream))["description"]) == (5, "new")


async def test_what_the_server_never_changes_is_refused_with_the_way_round(natty, stream):
    with pytest.raises(StreamExistsError) as caught:
        await natty.ensure_stream(stream, allow_destructive=True, storage="memory", max_msgs=5)
    assert "storage is 'file', wanted 'memory' (fixed: the server never changes it)" in str(caught.value)
    assert "create another stream and copy the messages by its `sources`" in str(caught.value)
    assert "allow_destructive" not in str(caught.value)
    assert (await config(natty, stream))["max_msgs"] == 100


async def test_create_changes_nothing_and_says_what_would(natty, stream):
    assert await natty.create_stream(stream, max_msgs=100) == await config(natty, stream)
    with pytest.raises(StreamExistsError, match=r"max_msgs is 100, wanted 200\. Nothing .*`ensure_stream\(.*, …\)`"):
        await natty.create_stream(stream, max_msgs=200)
    await natty.create_consumer(stream, "d", ack_wait=5)
    with pytest.raises(ConsumerExistsError, match=r"ack_wait is 5 s, wanted 9 s\. Nothing was changed"):
        await natty.create_consumer(stream, "d", ack_wait=9)
    with pytest.raises(ConsumerExistsError, match=r'`natty consumer edit`, or `ensure_consumer\(".*", "d", …\)`'):
        await natty.consume(stream, "d", print, consumer={"ack_wait": 9})
    assert (await config(natty, stream))["max_msgs"] == 100


async def test_a_limit_of_consumers_is_seconds_or_text(natty, natty_name):
    name = natty_name("LIMITS")
    for given in (3600, "1h"):
        made = await natty.ensure_stream(name, subjects=[name], consumer_limits={"inactive_threshold": given})
        assert made["consumer_limits"]["inactive_threshold"] == 3600 * 10**9


async def test_a_bucket_with_other_settings_says_what_changes_it(natty, natty_name):
    name = natty_name("B")
    await natty.create_bucket(name, history=5)
    with pytest.raises(StreamExistsError, match=rf'`ensure_stream\("KV_{name}", …, allow_destructive=True\)`'):
        await natty.create_bucket(name, history=2)
    await natty.ensure_stream(f"KV_{name}", allow_destructive=True, max_msgs_per_subject=2)
    await natty.create_bucket(name, history=2)


@pytest.mark.parametrize("call", ["consume", "pull", "stream_info", "consumer_info", "get_message", "purge_stream"])
async def test_a_missing_stream_is_named_with_what_to_do(natty, natty_name, call):
    name = natty_name("NOPE")
    calls = {
        "consume": lambda: natty.consume(name, "w", print).run(),
        "pull": lambda: anext(aiter(natty.pull(name, "w"))),
        "stream_info": lambda: natty.stream_info(name),
        "consumer_info": lambda: natty.consumer_info(name, "w"),
        "get_message": lambda: natty.get_message(name, sequence=1),
        "purge_stream": lambda: natty.purge_stream(name),
    }
    said = f"there is no stream {name}: check the name, or create it with create_stream or ensure_stream"
    with pytest.raises(StreamNotFoundError, match=said):
        await calls[call]()


async def test_a_missing_consumer_is_named_with_what_to_do(natty, stream):
    with pytest.raises(ConsumerNotFoundError, match=f"stream {stream} has no consumer w: check the name, or create it"):
        await natty.consumer_info(stream, "w")


async def test_a_consumers_safe_settings_are_changed_and_the_rest_is_kept(natty, stream):
    await natty.publish(f"{stream}.a", b"1")
    settings = {"priority_groups": ["A"], "priority_policy": "pinned_client", "priority_timeout": 7}
    before = await natty.ensure_consumer(stream, "d", ack_wait=5, filter_subjects=[f"{stream}.a"], **settings)
    after = await natty.ensure_consumer(stream, "d", ack_wait=50, max_ack_pending=5000, description="new")
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"ack_wait", "max_ack_pending", "description"}
    assert after["priority_timeout"] == 7 * 10**9
    assert await natty.ensure_consumer(stream, "d", filter_subjects=[f"{stream}.a"]) == after


async def test_a_consumers_filter_is_changed_only_when_allowed_one_or_many(natty, stream):
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    one, two = [f"{stream}.a"], [f"{stream}.a", f"{stream}.b"]
    await natty.ensure_consumer(stream, "d", filter_subject=one[0])
    with pytest.raises(ConsumerExistsError, match="messages it has skipped are not delivered later"):
        await natty.ensure_consumer(stream, "d", filter_subjects=two)
    assert (await natty.ensure_consumer(stream, "d", allow_destructive=True, filter_subjects=two))[
        "filter_subjects"
    ] == two
    await natty.ensure_consumer(stream, "d", filter_subjects=two[::-1])
    assert (await natty.ensure_consumer(stream, "d", allow_destructive=True, filter_subjects=one))[
        "filter_subjects"
    ] == one


async def test_a_plan_says_it_all_and_does_nothing(natty, stream, natty_name):
    planned = await plan_stream(natty.jetstream, stream, {"max_msgs": 200, "storage": "memory", "subjects": []})
    assert {one.setting: one.risk for one in planned.changes} == {
        "max_msgs": Risk.SAFE,
        "storage": Risk.FIXED,
        "subjects": Risk.DESTRUCTIVE,
    }
    assert (await plan_consumer(natty.jetstream, stream, "d", {})).missing
    assert (await plan_consumer(natty.jetstream, natty_name("NONE"), "d", {})).missing
    missing = natty_name("NONE")
    assert (await plan_stream(natty.jetstream, missing, {})).missing
    with pytest.raises(StreamNotFoundError):
        await config(natty, missing)
    assert (await config(natty, stream))["max_msgs"] == 100


async def test_of_many_who_raise_a_limit_at_once_each_ends_in_a_stream_or_a_difference(natty, stream):
    outcomes = await asyncio.gather(
        *(natty.ensure_stream(stream, max_msgs=number) for number in (200, 300, 400, 500)), return_exceptions=True
    )
    assert all(isinstance(one, dict | StreamExistsError) for one in outcomes), outcomes
    assert (await config(natty, stream))["max_msgs"] in (200, 300, 400, 500)


async def test_a_change_that_is_undone_by_somebody_else_is_seen(natty, stream, monkeypatch):
    """The server compares no revisions: what is written is read back."""
    update, undone = module._Stream.update, []

    async def update_and_undo(target, new):
        answer = await update(target, new)
        if len(undone) < 2:
            undone.append(await update(target, new | {"description": "theirs"}))
        return answer

    monkeypatch.setattr(module._Stream, "update", update_and_undo)
    got = await natty.ensure_stream(stream, description="ours")
    assert len(undone) == 2
    assert got["description"] == (await config(natty, stream))["description"] == "ours"


async def test_a_change_that_is_undone_again_and_again_is_given_up(natty, stream, monkeypatch):
    update = module._Stream.update

    async def update_and_undo(target, new):
        answer = await update(target, new)
        await update(target, new | {"description": "theirs"})
        return answer

    monkeypatch.setattr(module._Stream, "update", update_and_undo)
    with pytest.raises(
        StreamExistsError, match=r"is being changed by another client .* description is 'theirs', wanted"
    ):
        await natty.ensure_stream(stream, description="ours")


async def test_a_setting_that_the_server_drops_is_told(natty, stream, monkeypatch):
    """An older server drops fields it does not know; ours is made to by taking one out on the way."""
    update = module._Stream.update

    async def update_without(target, new):
        return await update(target, {name: value for name, value in new.items() if name != "allow_batched"})

    monkeypatch.setattr(module._Stream, "update", update_without)
    with pytest.raises(UnsupportedError, match=r"too old for allow_batched \(2\.14\): upgrade it"):
        await natty.ensure_stream(stream, allow_batched=True)


async def test_deleting_is_no_error_when_there_is_nothing(natty, stream):
    await natty.ensure_consumer(stream, "d")
    for _ in range(2):
        await natty.delete_consumer(stream, "d")
    assert (await all_consumers(natty.jetstream, stream)).found == []
    for _ in range(2):
        await natty.delete_stream(stream)
    await natty.delete_consumer(stream, "d")
    with pytest.raises(StreamNotFoundError):
        await config(natty, stream)


async def test_lists_are_read_page_by_page(natty, stream):
    names = [f"d{number:03}" for number in range(260)]  # a page holds 256
    await asyncio.gather(*(natty.create_consumer(stream, name) for name in names))
    assert [one["name"] for one in (await all_consumers(natty.jetstream, stream)).found] == names
    assert stream in [one["config"]["name"] for one in (await all_streams(natty.jetstream)).found]


class Tries:
    """Short tries, counted by what is asked, until there is no `hurry` any more."""

    def __init__(self, natty, monkeypatch):
        self.asked, self._patch, self._request = [], monkeypatch, natty.jetstream.request
        monkeypatch.setattr(natty.jetstream, "request", self._counted)
        monkeypatch.setattr(module, "WITHIN", 2 * PATIENCE)
        monkeypatch.setattr(module, "ONE_TRY", 0.2)

    async def _counted(self, subject, *arguments, **options):
        self.asked.append(subject)
        return await self._request(subject, *arguments, **options)

    def no_hurry(self):
        """Let the tries that follow take as long as they do."""
        self._patch.setattr(module, "ONE_TRY", 5.0)


async def test_a_server_that_does_not_answer_for_a_while_is_asked_again(natty_tls, nats_server_binary, monkeypatch):
    """Longer than one try takes: what is asked only once would end in RequestTimeoutError."""
    with NatsServer(tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            tries = Tries(natty, monkeypatch)
            pause(server)
            making = asyncio.create_task(natty.ensure_stream("S", subjects=["s"]))
            await until(lambda: making.done() or len(tries.asked) >= 3)
            assert not making.done()
            tries.no_hurry()
            server.resume()
            assert (await making)["subjects"] == ["s"]


async def test_a_server_that_restarts_meanwhile_is_waited_for(natty_tls, nats_server_binary, monkeypatch):
    monkeypatch.setattr(module, "WITHIN", 2 * PATIENCE)
    with NatsServer(tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await natty.ensure_stream("S", subjects=["s"])
            await asyncio.to_thread(server.kill)
            making = asyncio.create_task(natty.ensure_consumer("S", "d", ack_wait=7))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.start)
            assert (await making)["ack_wait"] == 7 * 10**9


async def test_a_server_that_never_answers_is_given_up(natty_tls, nats_server_binary, monkeypatch):
    monkeypatch.setattr(module, "WITHIN", 0.3)
    monkeypatch.setattr(module, "ONE_TRY", 0.1)
    with NatsServer(tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            pause(server)
            with pytest.raises((RequestTimeoutError, NotConnectedError)):
                await natty.ensure_stream("S", subjects=["s"])
            server.resume()


@pytest.mark.long
async def test_a_cluster_without_a_majority_is_waited_for(nats_cluster, monkeypatch):
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        await natty.ensure_stream("WAITS", subjects=["waits.>"], num_replicas=3)
        others = [server for server in nats_cluster if str(server.port) not in natty.connection._url]
        for server in others:
            await asyncio.to_thread(server.kill)
        tries = Tries(natty, monkeypatch)
        making = asyncio.gather(
            natty.ensure_stream("WAITS", description="widened"),
            natty.ensure_stream("WAITS_TOO", subjects=["waits_too"], num_replicas=3),
            natty.ensure_consumer("WAITS", "d", ack_wait=7),
        )
        try:
            await until(lambda: making.done() or len(tries.asked) >= 9)
            assert not making.done()
        finally:
            await asyncio.to_thread(nats_cluster.start)
        tries.no_hurry()
        widened, made, consumer = await making
        assert (widened["description"], made["num_replicas"], consumer["ack_wait"]) == ("widened", 3, 7 * 10**9)
        for name in ("WAITS", "WAITS_TOO"):
            await natty.delete_stream(name)


class Away:
    """The next requests to make a stream get the answer of a cluster that has just lost sight of a server."""

    def __init__(self, natty, monkeypatch, times, why="peer offline"):
        self.why = why
        self.left, self._request = times, natty.jetstream.request
        monkeypatch.setattr(natty.jetstream, "request", self._refused)
        monkeypatch.setattr(module, "ONE_TRY", 0.2)

    async def _refused(self, subject, *arguments, **options):
        if subject.startswith("STREAM.CREATE.") and self.left:
            self.left -= 1
            raise JetStreamError(f"no suitable peers for placement, {self.why}", code=400, err_code=10005)
        return await self._request(subject, *arguments, **options)


@pytest.mark.parametrize("why", ["peer offline", "miscellaneous issue"])
async def test_a_server_that_is_away_for_a_moment_is_waited_for(natty, natty_name, monkeypatch, why):
    name, away = natty_name("PEERS"), Away(natty, monkeypatch, 3, why)
    monkeypatch.setattr(module, "PEERS_WITHIN", PATIENCE)
    await natty.create_stream(name, subjects=[name])
    assert away.left == 0


async def test_a_server_that_stays_away_is_told(natty, natty_name, monkeypatch):
    Away(natty, monkeypatch, 1000)
    monkeypatch.setattr(module, "PEERS_WITHIN", 0.3)
    with pytest.raises(
        JetStreamError, match=r"there are not 3 servers that could take it: others are offline, or have just started$"
    ):
        await natty.create_stream(natty_name("PEERS"), num_replicas=3)


async def test_subjects_of_another_stream_are_refused_with_its_name(natty, stream, natty_name):
    with pytest.raises(JetStreamError, match=rf"its subjects overlap: .* of stream {stream}$"):
        await natty.ensure_stream(natty_name("OTHER"), subjects=[f"{stream}.>"])
    other = natty_name("OTHER")
    await natty.ensure_stream(other, subjects=[other])
    with pytest.raises(JetStreamError, match=rf"its subjects overlap: .* of stream {stream}$"):
        await natty.ensure_stream(other, subjects=[other, f"{stream}.>"])

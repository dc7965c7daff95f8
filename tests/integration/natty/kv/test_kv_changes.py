"""Changes of keys on a condition: update, refresh, modify, and create where a note of an expired key lies."""

import asyncio
import contextlib
import itertools
import random

import pytest
from expiring import expired
from patient import PATIENCE, PATIENT

from natty import (
    KeyExistsError,
    KeyNotFoundError,
    Natty,
    RequestTimeoutError,
    RevisionConflictError,
)
from natty.config.units import clock


@pytest.fixture
async def bucket(natty, natty_name):
    return await natty.create_bucket(natty_name("kv"))


async def test_an_update_needs_the_revision_that_is_there(bucket):
    first = await bucket.put("k", b"1")
    second = await bucket.update("k", b"2", revision=first)
    with pytest.raises(RevisionConflictError, match=f"key 'k' is not at revision {first} any more"):
        await bucket.update("k", b"3", revision=first)
    entry = await bucket.get("k")
    assert (entry.value, entry.revision) == (b"2", second)
    with pytest.raises(TypeError):
        await bucket.update("k", b"3")


async def test_a_refresh_restarts_the_ttl_and_keeps_value_and_headers(natty, bucket):
    headers = {"Nats-TTL": "600", "Owner": "ann", "Nats-Msg-Id": "once"}
    await natty.publish(f"$KV.{bucket.name}.k", b"value", headers=headers)
    first = await bucket._last("k")
    refreshed = await bucket.refresh("k")
    entry, stored = await bucket.get("k"), await bucket._last("k")
    assert (entry.value, entry.revision) == (b"value", refreshed.revision)
    assert stored.sequence > first.sequence
    assert stored.time > first.time  # from which the server counts
    assert (stored.headers["Owner"], stored.headers["Nats-TTL"]) == (["ann"], ["600"])
    assert "Nats-Msg-Id" not in stored.headers
    await bucket.refresh("k", ttl=1)
    await expired(bucket, "k")


async def test_a_refresh_never_brings_back_what_has_gone(bucket):
    await bucket.put("k", b"1")
    entry = await bucket.refresh(await bucket.get("k"), ttl=1)
    await expired(bucket, "k")
    await bucket.put("deleted", b"1")
    deleted = await bucket.get("deleted")
    await bucket.delete("deleted")
    for gone in ("k", entry, deleted):
        with pytest.raises(KeyNotFoundError):
            await bucket.refresh(gone)
    assert await bucket.keys() == []
    with pytest.raises(RevisionConflictError):  # gone between the read and the write
        await bucket.update("k", entry.value, revision=entry.revision)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")


async def test_of_two_who_refresh_one_revision_one_wins(bucket):
    revision = await bucket.put("k", b"1", ttl=600)
    for by_entry in (False, True):
        known = {"key": await bucket.get("k")} if by_entry else {"key": "k", "revision": revision}
        outcomes = await asyncio.gather(*(bucket.refresh(**known) for _ in range(2)), return_exceptions=True)
        won, lost = sorted(outcomes, key=lambda outcome: isinstance(outcome, Exception))
        assert isinstance(lost, RevisionConflictError)
        assert lost.current == won.revision > revision  # the loser learns the new revision
        revision = won.revision
    with pytest.raises(RevisionConflictError) as late:
        await bucket.refresh("k", revision=revision - 1)
    assert late.value.current == revision


async def test_modify_loses_no_change_however_many_change_a_key(natty, bucket):
    async def add(times):
        for _ in range(times):
            await natty.modify(bucket.name, "n", lambda old: b"%d" % (int(old or 0) + 1))

    await asyncio.gather(*(add(5) for _ in range(5)))
    assert (await bucket.get("n")).value == b"25"


async def test_modify_deletes_keeps_headers_and_leaves_alone_what_it_need_not_write(natty, bucket):
    await natty.publish(f"$KV.{bucket.name}.k", b"1", headers={"Nats-TTL": "500", "Owner": "ann"})
    same = await bucket.modify("k", lambda old: old)
    assert same.revision == 1
    changed = await bucket.modify("k", lambda old: old + b"2")
    entry = await bucket.get("k")
    assert entry == changed
    assert (entry.value, entry.ttl, entry.headers["Owner"]) == (b"12", 500.0, ["ann"])
    assert (await bucket.modify("k", lambda old: b"3", ttl=700)).ttl == 700.0
    assert await bucket.modify("k", lambda old: None) is None
    assert await bucket.keys() == []
    assert await bucket.modify("k", lambda old: None) is None
    assert (await bucket.status())["last_revision"] == 4
    assert (await bucket.modify("k", lambda old: b"new" if old is None else b"wrong")).value == b"new"


async def test_modify_gives_up_after_twenty_lost_races(bucket, monkeypatch):
    from natty.kv import bucket as module

    monkeypatch.setattr(module, "PAUSE", 0.0)
    calls, write = [], bucket._jetstream.publish

    async def lose(*arguments, **options):
        await write(f"$KV.{bucket.name}.k", b"faster")
        return await write(*arguments, **options)

    monkeypatch.setattr(bucket._jetstream, "publish", lose)
    with pytest.raises(RevisionConflictError, match="changed by other clients 20 times"):
        await bucket.modify("k", lambda old: calls.append(old) or b"mine")
    assert len(calls) == 20
    assert (await bucket.get("k")).value == b"faster"


async def test_create_succeeds_when_the_note_of_an_expired_key_goes_in_between(bucket, monkeypatch):
    await bucket.put("k", b"1")
    await bucket.purge("k", ttl=1)
    real = bucket._last

    async def late(key):
        """Read, and return only when what was read is not there any more."""
        last = await real(key)
        async with asyncio.timeout(PATIENCE):
            while last is not None and await real(key) == last:
                await asyncio.sleep(0.05)
        return last

    monkeypatch.setattr(bucket, "_last", late)
    await bucket.create("k", b"2")
    monkeypatch.undo()
    assert (await bucket.get("k")).value == b"2"


async def test_a_refresh_of_an_entry_reads_nothing_and_tells_how_long_it_is_good(bucket, monkeypatch):
    await bucket.put("k", b"1", ttl=300)
    entry = await bucket.get("k")
    monkeypatch.setattr(bucket, "_last", None)
    before = clock()
    entry = await bucket.refresh(entry)
    assert before + 300 <= entry.valid_until <= clock() + 300
    entry = await bucket.refresh(entry, ttl=600.5)
    assert (entry.value, entry.revision, entry.ttl) == (b"1", 3, 601.0)
    monkeypatch.undo()
    assert await bucket.get("k") == entry


async def test_a_refresh_is_valid_from_before_it_was_sent_however_late_the_answer_comes(natty_proxy, bucket):
    async with Natty(**natty_proxy.options, **PATIENT) as natty:
        beyond = natty.bucket(bucket.name)
        await beyond.put("k", b"1", ttl=300)
        entry = await beyond.get("k")
        natty_proxy.hold()
        refreshing = asyncio.create_task(beyond.refresh(entry))
        await asyncio.sleep(0)  # it is sent, and can't have an answer yet
        waiting = clock()
        natty_proxy.release()
        refreshed = await refreshing
        assert refreshed.valid_until <= waiting + 300
        assert refreshed.remaining() < 300


async def test_a_refresh_never_extends_anothers_value(bucket):
    mine = await bucket.get("k", revision=await bucket.put("k", b"mine"))
    theirs = await bucket.put("k", b"theirs")
    for refresh in (
        bucket.refresh("k", value=b"mine"),
        bucket.refresh("k", revision=mine.revision),
        bucket.refresh(mine),
    ):
        with pytest.raises(RevisionConflictError) as refused:
            await refresh
        assert refused.value.current == theirs
    assert (await bucket.get("k")).revision == theirs


async def test_a_refresh_whose_answer_is_lost_is_told_from_another_writers(natty, bucket, monkeypatch):
    """The first try is stored and its ack never comes; the second one is refused."""
    await bucket.put("k", b"1", ttl=600)
    lost, request = [], natty.connection.request

    async def lose_the_first_answer(subject, *arguments, **options):
        answer = await request(subject, *arguments, **options)
        if subject.startswith("$KV.") and not lost:
            lost.append(answer)
            raise RequestTimeoutError("lost")
        return answer

    monkeypatch.setattr(natty.connection, "request", lose_the_first_answer)
    refreshed = await bucket.refresh("k")
    assert lost
    assert refreshed.revision == (await bucket.status())["last_revision"] == 2


async def test_an_entry_without_its_value_is_not_written_back(bucket):
    await bucket.put("k", b"precious")
    entry = await anext(bucket.watch(values=False).__aiter__())
    with pytest.raises(ValueError, match="read without its value"):
        await bucket.refresh(entry)
    assert (await bucket.get("k")).value == b"precious"


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_at_the_same_time_a_refresh_changes_no_value(natty, natty_name, seed):
    """Many writers of few keys, interleaved at random: the stream itself is then read and checked."""
    random_ = random.Random(seed)
    bucket = await natty.create_bucket(natty_name("chaos"), history=64)
    keys = ["a", "b", "c"]
    refreshed, refused = {}, 0

    async def act(number):
        nonlocal refused
        key = random_.choice(keys)
        match random_.randrange(6):
            case 0:
                await bucket.put(key, b"put %d" % number, ttl=random_.choice([None, 500]))
            case 1:
                await bucket.delete(key)
            case 2:
                with contextlib.suppress(KeyExistsError):
                    await bucket.create(key, b"created %d" % number)
            case _:
                try:
                    entry = await bucket.get(key)
                    await asyncio.sleep(random_.choice([0, 0, 0.002]))
                    new = await bucket.refresh(random_.choice([entry, key]))
                    refreshed[new.revision] = new
                except (KeyNotFoundError, RevisionConflictError):
                    refused += 1

    for start in range(0, 150, 10):
        await asyncio.gather(*(act(number) for number in range(start, start + 10)))
    stories = {key: await bucket.history(key) for key in keys}
    for story in stories.values():
        for before, after in itertools.pairwise(story):
            if (new := refreshed.get(after.revision)) is not None:
                assert (after.value, after.ttl) == (new.value, new.ttl) == (before.value, before.ttl)
    assert set(refreshed) <= {event.revision for story in stories.values() for event in story}
    assert refreshed
    assert refused

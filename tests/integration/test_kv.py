import asyncio
import contextlib
import itertools
import random
import time

import pytest

from natty import (
    BucketNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    Natty,
    RequestTimeoutError,
    RevisionConflictError,
    StreamExistsError,
    UnsupportedError,
)
from natty.errors import PayloadTooLargeError
from natty.kv import BadKeyError, Gone


@pytest.fixture
async def bucket(natty, natty_name):
    return await natty.create_bucket(natty_name("kv"))


WITHIN = 30.0  # seconds that anything may take before a test gives up


async def expired(bucket, key, within=WITHIN):
    """Wait until a key has expired."""
    async with asyncio.timeout(within):
        with contextlib.suppress(KeyNotFoundError):
            while True:
                await bucket.get(key)
                await asyncio.sleep(0.05)


async def test_a_value_is_read_as_it_was_put(bucket):
    first = await bucket.put("a.b", b"1")
    second = await bucket.put("a.b", b"2")
    entry = await bucket.get("a.b")
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"2", second)
    assert second > first


async def test_an_empty_value_is_a_value(bucket):
    await bucket.put("k", b"")
    assert (await bucket.get("k")).value == b""
    with pytest.raises(KeyExistsError):
        await bucket.create("k", b"x")


async def test_a_missing_key_and_a_missing_bucket_are_named(natty, bucket, natty_name):
    with pytest.raises(KeyNotFoundError, match=f"no key 'nope' in bucket {bucket.name}"):
        await bucket.get("nope")
    missing = natty_name("nowhere")
    for refused in (natty.get(missing, "k"), natty.keys(missing), natty.bucket(missing).status()):
        with pytest.raises(BucketNotFoundError, match=f"there is no bucket {missing}"):
            await refused


@pytest.mark.parametrize("write", ["put", "create", "update", "modify", "refresh"])
async def test_writing_into_a_missing_bucket_says_so_at_once(natty, natty_name, write):
    missing = natty.bucket(natty_name("nowhere"))
    arguments = {"modify": ("k", lambda old: b"new"), "refresh": ("k",)}.get(write, ("k", b""))
    options = {"revision": 1} if write == "update" else {}
    with pytest.raises(BucketNotFoundError, match="there is no bucket"):
        async with asyncio.timeout(WITHIN):
            await getattr(missing, write)(*arguments, **options)


async def test_create_succeeds_once(bucket):
    revision = await bucket.create("k", b"1")
    with pytest.raises(KeyExistsError, match=f"key 'k' exists in bucket {bucket.name}, revision {revision}"):
        await bucket.create("k", b"2")


async def test_of_many_who_create_one_wins(bucket):
    outcomes = await asyncio.gather(*(bucket.create("k", b"%d" % i) for i in range(20)), return_exceptions=True)
    won = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(won) == 1
    assert all(isinstance(outcome, KeyExistsError) for outcome in outcomes if not isinstance(outcome, int))
    assert (await bucket.get("k")).value == b"%d" % outcomes.index(won[0])


async def test_a_deleted_key_reads_as_absent_and_can_be_created(bucket):
    await bucket.put("k", b"1")
    await bucket.delete("k")
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")
    assert await bucket.keys() == []
    await bucket.create("k", b"2")
    assert (await bucket.get("k")).value == b"2"
    await bucket.delete("never")


async def test_an_expired_key_reads_as_absent_and_can_be_created(bucket):
    """nats-py returns the server's note of it, and refuses to create the key for as long as the note lies there."""
    await bucket.put("k", b"1", ttl=1)
    await bucket.put("stays", b"1")
    await expired(bucket, "k")
    assert await bucket.keys() == ["stays"]
    last = await bucket._last("k")
    assert last is not None  # the note is there
    assert last.is_marker
    await bucket.create("k", b"2")
    assert (await bucket.get("k")).value == b"2"


async def test_a_bucket_whose_keys_all_expire(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), ttl=1.0)
    await bucket.create("k", b"1")
    await expired(bucket, "k")
    await bucket.create("k", b"2")
    assert (await bucket.status())["ttl"] == 1.0


async def test_an_update_needs_the_revision_that_is_there(bucket):
    first = await bucket.put("k", b"1")
    second = await bucket.update("k", b"2", revision=first)
    with pytest.raises(RevisionConflictError, match=f"key 'k' is not at revision {first} any more"):
        await bucket.update("k", b"3", revision=first)
    entry = await bucket.get("k")
    assert (entry.value, entry.revision) == (b"2", second)
    with pytest.raises(TypeError):
        await bucket.update("k", b"3")


async def test_a_delete_may_name_its_revision(bucket):
    first = await bucket.put("k", b"1")
    second = await bucket.put("k", b"2")
    with pytest.raises(RevisionConflictError):
        await bucket.delete("k", revision=first)
    assert (await bucket.get("k")).value == b"2"
    await bucket.delete("k", revision=second)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")


async def test_a_refresh_restarts_the_ttl_and_keeps_value_and_headers(natty, bucket):
    headers = {"Nats-TTL": "2", "Owner": "ann", "Nats-Msg-Id": "once"}
    await natty.publish(f"$KV.{bucket.name}.k", b"value", headers=headers)
    for _ in range(3):
        await asyncio.sleep(0.7)
        refreshed = await bucket.refresh("k")
    entry, stored = await bucket.get("k"), (await bucket._last("k")).headers
    assert (entry.value, entry.revision) == (b"value", refreshed.revision)
    assert (stored["Owner"], stored["Nats-TTL"]) == (["ann"], ["2"])
    assert "Nats-Msg-Id" not in stored
    await expired(bucket, "k")


async def test_a_refresh_never_brings_back_what_has_gone(bucket):
    await bucket.put("k", b"1", ttl=1)
    entry = await bucket.get("k")
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
    revision = await bucket.put("k", b"1", ttl=30)
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


async def test_a_bucket_with_other_settings_is_refused_with_the_difference(natty, natty_name):
    name = natty_name("kv")
    await natty.create_bucket(name, ttl=5)
    await natty.create_bucket(name, ttl=5)
    assert (await (await natty.create_bucket(name)).status())["ttl"] == 5.0
    with pytest.raises(StreamExistsError, match="max_age is 5 s, wanted 7 s"):
        await natty.create_bucket(name, ttl=7)


async def test_keys_are_sorted_and_may_have_a_prefix(bucket):
    for key in ("b", "a.2", "a.1", "ab", "a"):
        await bucket.put(key, b"")
    assert await bucket.keys() == ["a", "a.1", "a.2", "ab", "b"]
    assert await bucket.keys("a") == await bucket.keys("a.") == ["a.1", "a.2"]
    assert await bucket.keys("none") == []


async def test_bad_names_are_refused_with_the_place(natty, bucket):
    with pytest.raises(BadKeyError, match=r"key 'a\*': '\*' at character 2"):
        await bucket.put("a*", b"")
    with pytest.raises(BadKeyError, match=r"bucket 'a\.b': '\.' at character 2"):
        await natty.create_bucket("a.b")


async def test_a_value_that_is_too_large_is_refused(bucket):
    with pytest.raises(PayloadTooLargeError):
        await bucket.put("k", b"x" * 2_000_000)


async def test_a_fraction_of_a_second_is_rounded_up(bucket):
    await bucket.put("k", b"", ttl=0.2)
    assert (await bucket._last("k")).headers["Nats-TTL"] == ["1"]
    with pytest.raises(ValueError, match="a ttl of -5 s is over before it begins"):
        await bucket.put("k", b"", ttl=-5)


async def test_a_bucket_can_be_deleted_twice(natty, bucket):
    await natty.delete_bucket(bucket.name)
    await natty.delete_bucket(bucket.name)
    with pytest.raises(BucketNotFoundError):
        await bucket.get("k")


async def test_deleting_what_is_not_there_is_no_error(natty, bucket, natty_name):
    missing = natty_name("nowhere")
    await bucket.delete("never")
    await bucket.purge("never")
    await natty.delete(missing, "k")
    await natty.purge(missing, "k")
    with pytest.raises(BucketNotFoundError):
        await natty.status(missing)  # and none was made


async def test_put_and_create_make_a_missing_bucket_also_when_it_was_deleted_meanwhile(natty, natty_name):
    name = natty_name("made")
    for _ in range(2):
        assert await natty.put(name, "a", b"1") == 1
        assert await natty.create(name, "b", b"2", ttl=60) == 2
        await natty.delete_bucket(name)
    assert await asyncio.gather(*(natty.create(name, f"k.{i}", b"") for i in range(10)))
    assert len(await natty.keys(name)) == 10


async def test_a_put_asks_the_server_nothing_but_to_store_it(natty, natty_name, monkeypatch):
    name = natty_name("made")
    await natty.put(name, "a", b"1")
    asked, request = [], natty.connection.request

    async def counted(subject, *arguments, **options):
        asked.append(subject)
        return await request(subject, *arguments, **options)

    monkeypatch.setattr(natty.connection, "request", counted)
    await natty.put(name, "a", b"2")
    assert asked == [f"$KV.{name}.a"]
    assert natty.bucket(name) is natty.bucket(name)


async def test_an_older_value_is_read_by_its_revision(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), history=3)
    revisions = [await bucket.put("k", b"%d" % i) for i in range(5)]
    await bucket.put("other", b"")
    assert (await natty.get(bucket.name, "k", revision=revisions[3])).value == b"3"
    for gone in (revisions[0], revisions[4] + 1, 99):  # not held any more, another key's, never there
        with pytest.raises(KeyNotFoundError, match=f"holds no revision {gone} of key 'k'"):
            await bucket.get("k", revision=gone)


async def test_the_history_of_a_key_is_what_the_bucket_holds(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), history=3)
    for i in range(3):
        await bucket.put("k", b"%d" % i)
    await bucket.put("other", b"")
    await bucket.delete("k")
    first, second, last = await natty.history(bucket.name, "k")
    assert (first.value, second.value, last) == (b"1", b"2", Gone("k", 5, "deleted"))
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k", revision=5)
    await bucket.purge("k", revision=5)
    assert await bucket.history("k") == [Gone("k", 6, "purged")]
    assert await bucket.history("never") == []
    assert (await bucket.status())["history"] == 3
    for bad in (0, 65):
        with pytest.raises(ValueError, match=f"a history of {bad} is not possible"):
            await natty.create_bucket(natty_name("kv"), history=bad)


async def test_keys_are_filtered_by_the_server(bucket, natty):
    for key in ("a", "a.1", "a.2.x", "b.1", "b.2"):
        await bucket.put(key, bytes(100_000))
    assert await bucket.keys("a.*", "*.2") == ["a.1", "b.2"]
    assert await natty.keys(bucket.name, ">") == ["a", "a.1", "a.2.x", "b.1", "b.2"]
    received, answered = [], natty.connection._dispatch

    def counted(sid, messages):
        received.extend(sum(map(len, raw)) for raw in messages)
        answered(sid, messages)

    natty.connection._link.on_messages = counted
    assert await bucket.keys("b") == ["b.1", "b.2"]
    assert sum(received) < 200_000  # neither other keys nor values came over the wire, but of the leader's last one


async def test_keys_does_not_wait_for_ever(natty_proxy, natty, bucket):
    async with Natty(**natty_proxy.options, timeout=0.5, ping_interval=60) as far:
        natty_proxy.hold()
        with pytest.raises(RequestTimeoutError, match=r"showed nothing for 0\.5 s"):
            async with asyncio.timeout(WITHIN):
                await far.keys(bucket.name)
        natty_proxy.release()


async def test_modify_loses_no_change_however_many_change_a_key(natty, bucket):
    async def add(times):
        for _ in range(times):
            await natty.modify(bucket.name, "n", lambda old: b"%d" % (int(old or 0) + 1))

    await asyncio.gather(*(add(5) for _ in range(5)))
    assert (await bucket.get("n")).value == b"25"


async def test_modify_deletes_keeps_headers_and_leaves_alone_what_it_need_not_write(natty, bucket):
    await natty.publish(f"$KV.{bucket.name}.k", b"1", headers={"Nats-TTL": "50", "Owner": "ann"})
    same = await bucket.modify("k", lambda old: old)
    assert same.revision == 1
    changed = await bucket.modify("k", lambda old: old + b"2")
    entry = await bucket.get("k")
    assert entry == changed
    assert (entry.value, entry.ttl, entry.headers["Owner"]) == (b"12", 50.0, ["ann"])
    assert (await bucket.modify("k", lambda old: b"3", ttl=70)).ttl == 70.0
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
    with pytest.raises(RevisionConflictError, match="changed by others 20 times"):
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
        async with asyncio.timeout(WITHIN):
            while last is not None and await real(key) == last:
                await asyncio.sleep(0.05)
        return last

    monkeypatch.setattr(bucket, "_last", late)
    await bucket.create("k", b"2")
    monkeypatch.undo()
    assert (await bucket.get("k")).value == b"2"


async def test_a_ttl_of_a_key_is_refused_where_the_bucket_has_none(natty, natty_name):
    name = natty_name("old")
    await natty.create_stream(f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    bucket = natty.bucket(name)
    await bucket.put("k", b"1")
    for write in (bucket.put("k", b"2", ttl=5), bucket.update("k", b"2", revision=1, ttl=5), bucket.purge("k", ttl=5)):
        with pytest.raises(UnsupportedError, match=f"bucket {name} takes no time to live of a single key"):
            await write
    assert (await bucket.get("k")).value == b"1"


async def test_a_refresh_of_an_entry_reads_nothing_and_tells_how_long_it_is_good(bucket, monkeypatch):
    await bucket.put("k", b"1", ttl=30)
    entry = await bucket.get("k")
    monkeypatch.setattr(bucket, "_last", None)
    before = time.monotonic()
    entry = await bucket.refresh(entry)
    assert before + 30 <= entry.valid_until <= time.monotonic() + 30
    entry = await bucket.refresh(entry, ttl=60.5)
    assert (entry.value, entry.revision, entry.ttl) == (b"1", 3, 61.0)
    monkeypatch.undo()
    assert await bucket.get("k") == entry


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
    await bucket.put("k", b"1", ttl=60)
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
                await bucket.put(key, b"put %d" % number, ttl=random_.choice([None, 50]))
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

import asyncio
import json

import pytest
from expiring import expired
from patient import PATIENCE, PATIENT

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
from natty.kv import BadKeyError, Gone, bucket_settings
from natty.streams import create_stream


@pytest.fixture
async def bucket(natty, natty_name):
    return await natty.create_bucket(natty_name("kv"))


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
        async with asyncio.timeout(PATIENCE):
            await getattr(missing, write)(*arguments, **options)


async def test_create_succeeds_once(bucket):
    revision = await bucket.create("k", b"1")
    with pytest.raises(KeyExistsError, match=f"key 'k' exists in bucket {bucket.name}, revision {revision}"):
        await bucket.create("k", b"2")


async def test_a_value_that_is_not_bytes_is_a_type_error_and_stores_nothing(bucket):
    for value in ("text", None, 5):
        with pytest.raises(TypeError, match="must be bytes"):
            await bucket.create("k", value)
        with pytest.raises(TypeError, match="must be bytes"):
            await bucket.put("k", value)
    assert await bucket.keys() == []


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


async def test_a_key_of_a_bucket_with_history_ends_after_its_own_ttl(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), history=5)
    assert (await bucket.status())["marker_ttl"] == 1.0
    await bucket.put("k", b"1", ttl=1)
    await bucket.put("k", b"2", ttl=1)
    await bucket.refresh("k")
    assert (await bucket.get("k")).ttl == 1.0
    await bucket.create("other", b"1", ttl=1.2)
    assert (await bucket.get("other")).ttl == 2.0
    await bucket.put("covered", b"for ever")
    await bucket.put("covered", b"for a while", ttl=1)
    await expired(bucket, "k", within=30)  # less than the 60 s to which the server would raise it under usual markers
    await expired(bucket, "other", within=30)
    async with asyncio.timeout(30):  # as documented: the value before has a TTL of its own, or none
        while (await bucket.get("covered")).value != b"for ever":
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("made_by", ["an older natty", "another client", "its user"])
async def test_a_ttl_that_the_server_would_raise_is_refused_with_both_numbers(natty, natty_name, made_by):
    name = natty_name("kv")
    if made_by == "its user":
        bucket = await natty.create_bucket(name, history=5, marker_ttl=30)
    else:
        settings = bucket_settings(name, None) | {"max_msgs_per_subject": 5, "subject_delete_marker_ttl": 30.0}
        await create_stream(natty.jetstream, f"KV_{name}", settings)
        bucket = await natty.create_bucket(name, history=5)  # as it is: its markers were not named
    revision = await bucket.put("k", b"1", ttl=30)
    for write in (
        bucket.put("k", b"2", ttl=29),
        bucket.create("new", b"2", ttl=1),
        bucket.update("k", b"2", revision=revision, ttl=1),
        bucket.modify("k", lambda value: b"2", ttl=1),
        bucket.refresh("k", ttl=1),
        bucket.purge("k", ttl=1),
    ):
        with pytest.raises(UnsupportedError, match=rf"a ttl of \d+ s is too short for bucket {name}.* 30 s"):
            await write
    assert (await bucket.get("k")).revision == revision


async def test_a_bucket_whose_markers_are_shortened_takes_shorter_ttls_at_once(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), history=5, marker_ttl=30)
    with pytest.raises(UnsupportedError):
        await bucket.put("k", b"1", ttl=1)
    await natty.ensure_stream(bucket.stream, subject_delete_marker_ttl=1.0, allow_destructive=True)
    await bucket.put("k", b"1", ttl=0.5)  # rounded up to what it may be
    await expired(bucket, "k")
    with pytest.raises(StreamExistsError, match="subject_delete_marker_ttl is 1 s, wanted 30 s"):
        await natty.create_bucket(bucket.name, marker_ttl=30)
    with pytest.raises(ValueError, match=r"marker_ttl is 0.5 s: give at least 1 s"):
        await natty.create_bucket(bucket.name, marker_ttl=0.5)


@pytest.mark.parametrize(("history", "markers"), [(1, 60), (2, 1), (64, 1)])
async def test_a_bucket_with_any_history_takes_ttls_of_whole_seconds(natty, natty_name, history, markers):
    bucket = await natty.create_bucket(natty_name("kv"), history=history)
    await bucket.put("k", b"1", ttl=1)
    assert (await bucket.get("k")).ttl == 1
    assert (await bucket.status())["marker_ttl"] == markers


async def test_ttls_may_be_text_in_units(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("kv"), ttl="7d", marker_ttl="1m")
    status = await bucket.status()
    assert (status["ttl"], status["marker_ttl"]) == (7 * 86_400, 60)
    await bucket.put("k", b"1", ttl="1h30m")
    assert (await bucket.get("k")).ttl == 5400
    for wrong, error in (("soon", ValueError), (True, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="ttl"):
            await natty.create_bucket(bucket.name, ttl=wrong)
        with pytest.raises(error, match="ttl"):
            await bucket.put("k", b"1", ttl=wrong)
    with pytest.raises(TypeError, match="timeout is '5s'; write a number of seconds"):
        await natty.publish("anything", b"", timeout="5s")


async def test_a_delete_may_name_its_revision(bucket):
    first = await bucket.put("k", b"1")
    second = await bucket.put("k", b"2")
    with pytest.raises(RevisionConflictError):
        await bucket.delete("k", revision=first)
    assert (await bucket.get("k")).value == b"2"
    await bucket.delete("k", revision=second)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")


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
    await bucket.put("k", b"", ttl=599.2)
    assert (await bucket._last("k")).headers["Nats-TTL"] == ["600"]
    with pytest.raises(ValueError, match="a ttl of -5 s is not possible"):
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


async def test_put_and_create_make_a_missing_bucket_on_demand_also_when_it_was_deleted_meanwhile(natty, natty_name):
    name = natty_name("made")
    for _ in range(2):
        assert await natty.put(name, "a", b"1", create_bucket=True) == 1
        assert await natty.create(name, "b", b"2", ttl=600) == 2
        await natty.delete_bucket(name)
    assert await asyncio.gather(*(natty.create(name, f"k.{i}", b"", create_bucket=True) for i in range(10)))
    assert len(await natty.keys(name)) == 10


async def test_a_put_asks_the_server_nothing_but_to_store_it(natty, natty_name, monkeypatch):
    name = natty_name("made")
    await natty.put(name, "a", b"1", create_bucket=True)
    asked, request = [], natty.connection.request

    async def counted(subject, *arguments, **options):
        asked.append(subject)
        return await request(subject, *arguments, **options)

    monkeypatch.setattr(natty.connection, "request", counted)
    await natty.put(name, "a", b"2", create_bucket=True)
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
        with pytest.raises(ValueError, match=f"history is {bad}: give 1 to 64 values per key"):
            await natty.create_bucket(natty_name("kv"), history=bad)


async def test_keys_are_filtered_by_the_server(bucket, natty):
    for key in ("a", "a.1", "a.2.x", "b.1", "b.2"):
        await bucket.put(key, bytes(100_000))
    assert await bucket.keys("a.*", "*.2") == ["a.1", "b.2"]
    assert await natty.keys(bucket.name, ">") == ["a", "a.1", "a.2.x", "b.1", "b.2"]
    received, answered = [], natty.connection._dispatch

    def noted(sid, batch):
        received.extend(batch.raw)
        answered(sid, batch)

    natty.connection._session._parser._deliver = noted
    assert await bucket.keys("b") == ["b.1", "b.2"]
    root = f"$KV.{bucket.name}."
    delivered = {(subject, data) for subject, _, _, data in received if subject.startswith(root.encode())}
    assert delivered == {(f"{root}b.{i}".encode(), b"") for i in (1, 2)}
    with_values = [json.loads(data)["message"]["subject"] for _, _, _, data in received if len(data) > 100_000]
    assert set(with_values) == {f"{root}b.2"}  # the leader's last one, so that it is known when all have come


async def test_keys_does_not_wait_for_ever(natty_proxy, natty, bucket):
    async with Natty(**natty_proxy.options, **PATIENT | {"timeout": 0.5}) as far:
        natty_proxy.hold()
        with pytest.raises(RequestTimeoutError, match=r"sent nothing for 0\.5 s"):
            async with asyncio.timeout(PATIENCE):
                await far.keys(bucket.name)
        natty_proxy.release()


async def test_a_ttl_of_a_key_is_refused_where_the_bucket_has_none(natty, natty_name):
    name = natty_name("old")
    await natty.create_stream(f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    bucket = natty.bucket(name)
    await bucket.put("k", b"1")
    for write in (bucket.put("k", b"2", ttl=5), bucket.update("k", b"2", revision=1, ttl=5), bucket.purge("k", ttl=5)):
        with pytest.raises(UnsupportedError, match=f"bucket {name} does not support a ttl of a single key"):
            await write
    assert (await bucket.get("k")).value == b"1"

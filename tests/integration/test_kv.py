import asyncio
import contextlib

import pytest

from natty import (
    BucketNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    StreamExistsError,
)
from natty.errors import PayloadTooLargeError
from natty.kv import BadKeyError


@pytest.fixture
async def bucket(natty, natty_name):
    return await natty.create_bucket(natty_name("kv"))


async def expired(bucket, key, within=4.0):
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


@pytest.mark.parametrize("write", ["put", "update", "delete"])
async def test_writing_into_a_missing_bucket_says_so_at_once(natty, natty_name, write):
    missing = natty.bucket(natty_name("nowhere"))
    arguments = {"put": ("k", b""), "update": ("k", b""), "delete": ("k",)}[write]
    options = {"revision": 1} if write == "update" else {}
    with pytest.raises(BucketNotFoundError, match="there is no bucket"):
        await asyncio.wait_for(getattr(missing, write)(*arguments, **options), 3)


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
    for _ in range(4):
        await asyncio.sleep(0.7)
        revision = await bucket.refresh("k")
    entry, stored = await bucket.get("k"), (await bucket._last("k")).headers
    assert (entry.value, entry.revision) == (b"value", revision)
    assert (stored["Owner"], stored["Nats-TTL"]) == (["ann"], ["2"])
    await expired(bucket, "k")


async def test_a_refresh_never_brings_back_what_has_gone(bucket):
    await bucket.put("k", b"1", ttl=1)
    entry = await bucket.get("k")
    await expired(bucket, "k")
    with pytest.raises(KeyNotFoundError):
        await bucket.refresh("k")
    with pytest.raises(RevisionConflictError):  # gone between the read and the write
        await bucket.update("k", entry.value, revision=entry.revision)
    with pytest.raises(KeyNotFoundError):
        await bucket.get("k")


async def test_of_two_who_refresh_one_revision_one_wins(bucket):
    revision = await bucket.put("k", b"1", ttl=30)
    outcomes = await asyncio.gather(*(bucket.refresh("k", revision=revision) for _ in range(2)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RevisionConflictError", "int"]
    with pytest.raises(RevisionConflictError, match=f"not at {revision}"):
        await bucket.refresh("k", revision=revision)


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

"""The key-value methods of the client are the bucket's own, with the bucket's name in front."""

import inspect
import re
from contextlib import aclosing

import pytest

from natty import (
    BadKeyError,
    Bucket,
    BucketNotFoundError,
    Entry,
    Gone,
    KeyExistsError,
    KeyNotFoundError,
    Natty,
    PictureComplete,
    RevisionConflictError,
)

ONLY_OF_THE_CLIENT = {  # they are about buckets, not about the keys of one
    "bucket": "returns the handle",
    "buckets": "keeps the handles",
    "create_bucket": "makes a bucket",
    "delete_bucket": "deletes a bucket",
}
BOTH = {name for name, one in vars(Bucket).items() if inspect.isfunction(one) and not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(BOTH))
def test_each_method_of_a_bucket_is_one_of_the_client_with_the_buckets_name_in_front(name):
    ours, theirs = inspect.signature(getattr(Bucket, name)), inspect.signature(getattr(Natty, name))
    itself, bucket, *rest = theirs.parameters.values()
    assert (itself.name, bucket.name, bucket.annotation, bucket.default) == ("self", "bucket", "str", bucket.empty)
    assert rest == list(ours.parameters.values())[1:]
    assert theirs.return_annotation == ours.return_annotation
    assert inspect.iscoroutinefunction(getattr(Natty, name)) == inspect.iscoroutinefunction(getattr(Bucket, name))
    contract, _, more = inspect.getdoc(getattr(Bucket, name)).partition("\n\n")
    assert inspect.getdoc(getattr(Natty, name)) == contract + (f"\n\nSee `Bucket.{name}`." if more else "")


def test_no_other_method_of_the_client_is_about_keys():
    of_buckets = {name for name in vars(Natty) if "bucket" in name and not name.startswith("_")}
    assert of_buckets == ONLY_OF_THE_CLIENT.keys()


async def events(watch):
    seen = []
    async with aclosing(watch.__aiter__()) as reading:
        while not (seen and isinstance(seen[-1], PictureComplete)):
            seen.append(await anext(reading))
    return seen


def double(value):
    return (value or b"") * 2


MISSING = "missing"  # stands for a bucket that is not there
CALLS = {  # name of the call: (method, arguments, options, what comes of it on a bucket that holds a=1, revision 1)
    "get": ("get", ("a",), {}, Entry("a", b"1", 1)),
    "get at a revision": ("get", ("a",), {"revision": 1}, Entry("a", b"1", 1)),
    "get a missing key": ("get", ("b",), {}, KeyNotFoundError),
    "get at another revision": ("get", ("a",), {"revision": 7}, KeyNotFoundError),
    "get what can be no key": ("get", ("a b",), {}, BadKeyError),
    "get from no bucket": ("get", ("a",), {MISSING: True}, BucketNotFoundError),
    "put": ("put", ("a", b"2"), {}, 2),
    "put with a ttl": ("put", ("a", b"2"), {"ttl": "1h"}, 2),
    "put what can be no key": ("put", ("", b"2"), {}, BadKeyError),
    "put what is no bytes": ("put", ("a", "2"), {}, TypeError),
    "put into no bucket": ("put", ("a", b"2"), {MISSING: True}, BucketNotFoundError),
    "put and make the bucket": ("put", ("a", b"2"), {MISSING: True, "create_bucket": True}, 1),
    "put where the bucket is made": ("put", ("a", b"2"), {"create_bucket": True}, 2),
    "create": ("create", ("b", b"2"), {}, 2),
    "create what exists": ("create", ("a", b"2"), {}, KeyExistsError),
    "create in no bucket": ("create", ("a", b"2"), {MISSING: True}, BucketNotFoundError),
    "create and make the bucket": ("create", ("a", b"2"), {MISSING: True, "create_bucket": True}, 1),
    "update": ("update", ("a", b"2"), {"revision": 1}, 2),
    "update at another revision": ("update", ("a", b"2"), {"revision": 7}, RevisionConflictError),
    "update in no bucket": ("update", ("a", b"2"), {"revision": 1, MISSING: True}, BucketNotFoundError),
    "modify": ("modify", ("a", double), {}, Entry("a", b"11", 2)),
    "modify in no bucket": ("modify", ("a", double), {MISSING: True}, BucketNotFoundError),
    "refresh": ("refresh", ("a",), {}, Entry("a", b"1", 2)),
    "refresh an entry": ("refresh", (Entry("a", b"1", 1),), {}, Entry("a", b"1", 2)),
    "refresh another revision": ("refresh", ("a",), {"revision": 7}, RevisionConflictError),
    "refresh another value": ("refresh", ("a",), {"value": b"2"}, RevisionConflictError),
    "refresh a missing key": ("refresh", ("b",), {}, KeyNotFoundError),
    "refresh in no bucket": ("refresh", ("a",), {MISSING: True}, BucketNotFoundError),
    "delete": ("delete", ("a",), {}, None),
    "delete at another revision": ("delete", ("a",), {"revision": 7}, RevisionConflictError),
    "delete in no bucket": ("delete", ("a",), {MISSING: True}, None),
    "purge": ("purge", ("a",), {"ttl": 60}, None),
    "purge at another revision": ("purge", ("a",), {"revision": 7}, RevisionConflictError),
    "purge in no bucket": ("purge", ("a",), {MISSING: True}, None),
    "keys": ("keys", (), {}, ["a"]),
    "keys of a filter": ("keys", ("b.>",), {}, []),
    "keys of no bucket": ("keys", (), {MISSING: True}, BucketNotFoundError),
    "history": ("history", ("a",), {}, [Entry("a", b"1", 1)]),
    "history of no bucket": ("history", ("a",), {MISSING: True}, BucketNotFoundError),
    "watch": ("watch", (), {}, [Entry("a", b"1", 1), PictureComplete(1)]),
    "watch keys": ("watch", ("b", "c.>"), {"values": False}, [PictureComplete(0)]),
    "watch no bucket": ("watch", (), {MISSING: True}, BucketNotFoundError),
    "status": ("status", (), {}, {"values": 1, "last_revision": 1, "history": 5}),
    "status of no bucket": ("status", (), {MISSING: True}, BucketNotFoundError),
}


def test_each_method_is_called_and_fails():
    assert {method for method, *_ in CALLS.values()} == BOTH


async def outcome(call, name):
    """Return what comes of a call: its result, or its error's type and text without the bucket's name."""
    try:
        result = call()
        result = await (events(result) if hasattr(result, "__aiter__") else result)
    except Exception as error:
        return type(error), re.sub(rf"\b(KV_)?{name}\b", "BUCKET", str(error))
    if isinstance(result, dict):
        result = {key: value for key, value in result.items() if key not in ("bucket", "created", "bytes")}
    return result


@pytest.mark.parametrize("title", CALLS)
async def test_the_client_and_the_bucket_have_the_same_results_and_errors(natty, natty_name, title):
    method, arguments, options, expected = CALLS[title]
    options = dict(options)
    missing, outcomes = options.pop(MISSING, False), []
    for through_the_client in (True, False):
        name = natty_name("twins")
        if not missing:
            bucket = await natty.create_bucket(name, history=5)
            assert await bucket.put("a", b"1") == 1
        home = natty if through_the_client else natty.bucket(name)
        given = (name, *arguments) if through_the_client else arguments
        outcomes.append(await outcome(lambda home=home, given=given: getattr(home, method)(*given, **options), name))
    ours, theirs = outcomes
    assert ours == theirs
    if isinstance(expected, type):
        assert ours[0] is expected
    elif isinstance(expected, dict):
        assert expected.items() <= ours.items()
    else:
        assert ours == expected


async def test_what_was_deleted_reads_alike_through_both(natty, natty_name):
    name = natty_name("twins")
    await natty.put(name, "a", b"1", create_bucket=True)
    await natty.delete(name, "a")
    assert await natty.history(name, "a") == await natty.bucket(name).history("a") == [Gone("a", 2, "deleted")]


async def test_a_missing_bucket_says_how_it_is_made(natty, natty_name):
    name = natty_name("none")
    said = rf"there is no bucket {name}: make it with create_bucket\(\), or give create_bucket=True"
    with pytest.raises(BucketNotFoundError, match=said):
        await natty.put(name, "a", b"")
    with pytest.raises(BucketNotFoundError, match=said):
        await natty.create(name, "a", b"")

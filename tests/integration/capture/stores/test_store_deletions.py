"""Many objects are deleted by few requests of a real S3 server, whatever it answers."""

from dataclasses import dataclass
from hashlib import sha256

import pytest
from stores_faults import LOSE_ANSWER, Say

from capture.errors import StoreError, StoreUnreadableError
from capture.stores import open_store
from capture.stores.conformance import AWKWARD_NAMES
from capture.stores.deletion import delete_all
from natty.testing import free_ports
from natty.wire.background import map_concurrently


@pytest.fixture
def stores(s3, faulty, request):
    """The same store twice: through what is faulty, and directly."""
    prefix = f"deletions/{sha256(request.node.name.encode()).hexdigest()}"
    return open_store(s3.url(prefix, endpoint=faulty.endpoint)), open_store(s3.url(prefix))


def posts(faulty):
    return [request for request in faulty.requests if request.method == "POST"]


@pytest.mark.long
async def test_thousands_of_objects_are_deleted_by_a_few_requests_with_checksums(stores, faulty):
    store, direct = stores
    names = [*AWKWARD_NAMES, *(f"{number}" for number in range(1100))]
    await map_concurrently(names, lambda name: direct.put(f"a/{name}", b""), at_once=16)
    await direct.put("kept", b"x")
    checks = []
    await delete_all(store, [f"a/{name}" for name in [*names, "never stored"]], check=lambda: checks.append(1))
    assert [one.path for one in await direct.list()] == ["kept"]
    assert len(checks) == len(posts(faulty)) == len(faulty.requests) == 2
    assert all("content-md5" in one.headers for one in faulty.requests)


@pytest.mark.parametrize("status", [400, 403, 405, 501])
async def test_a_server_without_that_request_gets_one_for_each_object_and_is_not_asked_again(stores, faulty, status):
    store, direct = stores
    faulty.fault = lambda request: Say(status, "NotImplemented") if request.method == "POST" else None
    asked = []
    for _ in range(2):
        for number in range(40):
            await direct.put(f"{number}", b"")
        await delete_all(store, [f"{number}" for number in range(40)])
        assert await direct.list() == []
        asked.append(len(posts(faulty)))
    assert asked[0] > 0
    assert (asked[0] < asked[1]) == (status == 403)  # a lack of permissions, perhaps for a while


@dataclass(frozen=True)
class Refused(Say):
    """The answer of S3 when it refuses one of the objects."""

    key: str = ""

    def encoded(self):
        error = f"<Error><Key>{self.key}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        body = f"<DeleteResult>{error}</DeleteResult>".encode()
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("strange", [False, True], ids=["its name", "a name that was not asked for"])
async def test_an_object_that_the_server_does_not_delete_is_named_and_the_others_are_deleted(stores, faulty, strange):
    store, direct = stores
    prefix = store.url.removeprefix("s3://lake/").partition("?")[0]
    answer = Refused(200, key="b" if strange else f"{prefix}/b")
    for name in "abc":
        await direct.put(name, b"")

    def refuse(request):
        if request.method == "POST":
            return answer
        return Say(403, "AccessDenied") if request.method == "DELETE" and request.target.endswith("/b") else None

    faulty.fault = refuse
    with pytest.raises(
        StoreUnreadableError, match=r"^s3://.* does not allow it \(403 AccessDenied, while deleting b\): give"
    ):
        await delete_all(store, "abc")
    assert [one.path for one in await direct.list()] == ["b"]
    faulty.fault = lambda request: answer if request.method == "POST" else None  # a fault that passes
    await delete_all(store, "bc")
    assert await direct.list() == []


async def test_a_deletion_whose_answer_is_lost_is_repeated(stores, faulty):
    store, direct = stores
    for name in "abc":
        await direct.put(name, b"")
    faulty.fault = lambda request: LOSE_ANSWER if request.method == "POST" and len(posts(faulty)) < 2 else None
    await delete_all(store, "abc")
    assert await direct.list() == []


async def test_a_store_that_is_away_is_named_when_many_objects_are_deleted(s3):
    store = open_store(s3.url(endpoint=f"https://127.0.0.1:{free_ports(1)[0]}", timeout=5))
    with pytest.raises(StoreError, match=r"^s3://.* can't be reached .*, while deleting \w\): "):
        await delete_all(store, "abc")

import asyncio
import traceback
from hashlib import sha256
from urllib.parse import unquote

import obstore
import pytest
from patient import PATIENCE
from stores import SECRET
from stores_faults import HANG, LIE, LOSE_ANSWER, Say

from capture.archive.manifest import decode_entry, entry_path
from capture.errors import AlreadyStoredError, NotStoredError, StoreError, StoreFullError, StoreUnreadableError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.stores import check_store, open_store
from natty.testing import Proxy

BLOCKS = 12
QUICK = CommitOptions(attempts=1000, backoff=0.01, max_backoff=0.05)  # as often as a slow machine may need


@pytest.fixture
def stores(s3, faulty, request):
    """The same store twice: through what is faulty, and directly."""
    prefix = f"faults/{sha256(request.node.name.encode()).hexdigest()}"
    return open_store(s3.url(prefix, endpoint=faulty.endpoint)), open_store(s3.url(prefix))


class Ledger:
    def __init__(self):
        self.acked, self.handed_back = [], []

    def ack(self, messages):
        self.acked += messages.replies

    def nak(self, messages, delay=0.0):
        self.handed_back += messages.replies


def block(number):
    records = Records(
        "S", [number], [10**18], [b"s.a"], [b""], [b"payload %d" % number], [1], [b"reply.%d" % number], [None]
    )
    return SealedBlock("S", "a", 0, records, "age")


async def durable(store):
    """The replies of the messages whose block and entry are in the store, whole."""
    found = set()
    for one in await store.list("_entries/"):
        entry = decode_entry(await store.get(one.path), one.path)
        assert sha256(await store.get(entry.path)).hexdigest() == entry.sha256
        assert entry_path(entry.path) == one.path
        found.add(b"reply.%d" % entry.first)
    return found


def is_put(request, folder=""):
    return request.method == "PUT" and f"/{folder}" in unquote(request.target)


def first_times(count, applies, what):
    """Does `what` to the first `count` requests that apply, once each."""
    seen = set()

    def fault(request):
        if len(seen) < count and applies(request) and request.target not in seen:
            seen.add(request.target)
            return what
        return None

    return fault


def every_other(applies, what):
    count = iter(range(10**9))
    return lambda request: what if applies(request) and next(count) % 2 == 0 else None


FULL = Say(507, "XMinioStorageFull")
FAULTS = {
    "refuses every other put": lambda: every_other(is_put, Say(500, "InternalError")),
    "says 500 after it stored": lambda: every_other(is_put, Say(500, "InternalError", after=True)),
    "loses the answer to every first request": lambda: first_times(4 * BLOCKS, lambda one: True, LOSE_ANSWER),
    "hangs": lambda: first_times(2, is_put, HANG),
    "asks to slow down": lambda: every_other(is_put, Say(503, "SlowDown")),
    "lies once about each block": lambda: first_times(BLOCKS, lambda one: is_put(one, "blocks/"), LIE),
    "lies once about each entry": lambda: first_times(BLOCKS, lambda one: is_put(one, "_entries/"), LIE),
    "says that what is not there exists": lambda: first_times(4 * BLOCKS, is_put, Say(412, "PreconditionFailed")),
    "has conflicts": lambda: every_other(is_put, Say(409, "ConditionalRequestConflict")),
    "is full for a while": lambda: first_times(
        BLOCKS, lambda one: is_put(one, "blocks/"), Say(507, "XMinioStorageFull")
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_nothing_is_acknowledged_that_is_not_durable_when_the_store(name, stores, faulty):
    store, direct = stores
    ledger = Ledger()
    if name == "hangs":
        store = open_store(store.url.replace(f"timeout={PATIENCE:g}", "timeout=0.5"))
    committer = Committer(store, writer("ndjson"), ledger, QUICK)
    faulty.fault = FAULTS[name]()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(committer.commit(block(number)) for number in range(BLOCKS)))
    assert set(ledger.acked) == {b"reply.%d" % number for number in range(BLOCKS)}
    assert await durable(direct) == set(ledger.acked)
    assert ledger.handed_back == []


async def test_a_full_store_is_said_its_messages_are_handed_back_and_it_stores_again_when_there_is_room(stores, faulty):
    store, direct = stores
    ledger = Ledger()
    committer = Committer(store, writer("ndjson"), ledger, CommitOptions(attempts=2, backoff=0.01))
    faulty.fault = lambda request: FULL if is_put(request) else None
    with pytest.raises(StoreFullError, match=r"is full \(507 XMinioStorageFull, while .*\): free space there"):
        await committer.commit(block(1))
    assert (ledger.acked, ledger.handed_back) == ([], [b"reply.1"])
    faulty.fault = lambda request: None
    await committer.commit(block(1))
    assert await durable(direct) == {b"reply.1"}


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("a", b"x"),
        lambda store: store.put("a", b"x", if_absent=False),
        lambda store: store.get("a"),
        lambda store: store.get_range("a", 0, 1),
        lambda store: store.list("a"),
        lambda store: store.delete("a"),
        lambda store: store.remove_leftovers(0.0, 0.0),
    ],
    ids=["put", "replace", "get", "get_range", "list", "delete", "remove_leftovers"],
)
async def test_a_store_that_hangs_is_an_error(call, s3, faulty):
    faulty.fault = lambda request: HANG
    store = open_store(s3.url("hangs", endpoint=faulty.endpoint, timeout=0.2))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreError, match=r"s3://lake/hangs did not answer within 0\.2 s"):
            await call(store)


async def persistent(store, path):
    """Put an object as the commit does, again after an error: the first may meet a connection that is just ending."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await store.put(path, b"x")
            except AlreadyStoredError:
                return None
            except StoreError:
                await asyncio.sleep(0.01)


async def test_a_machine_that_vanished_is_an_error_and_its_return_is_noticed(s3):
    async with Proxy("127.0.0.1", int(s3.endpoint.rpartition(":")[2]), scheme="https") as proxy:
        store = open_store(s3.url(endpoint=proxy.url))
        await store.put("before", b"x")
        proxy.half_open()
        hasty = open_store(store.url.replace(f"timeout={PATIENCE:g}", "timeout=0.2"))
        for one in (hasty.get("before"), hasty.put("during", b"x")):
            with pytest.raises(StoreError, match=r"did not answer|can't be reached"):
                await one
        await proxy.restore()
        await persistent(store, "after")
        await proxy.cut()
        with pytest.raises(StoreError, match=r"can't be reached \(no process listens there, or a firewall blocks it,"):
            await store.get("before")
        with pytest.raises(StoreError, match="can't be reached"):  # the store's owner may wait for it, and check again
            await check_store(store)
        await proxy.restore()
        assert {one.path for one in await store.list()} >= {"after", "before"}  # and "during", if that was only slow


async def test_a_put_that_the_driver_repeats_after_a_lost_answer_is_ours_and_nobody_elses(stores, faulty):
    store, direct = stores
    await store.put("warm", b"")
    faulty.fault = first_times(1, is_put, Say(500, "InternalError", after=True))
    faulty.requests.clear()
    await store.put("a", b"ours")  # not AlreadyStoredError
    assert [one.method for one in faulty.requests] == ["PUT", "PUT", "HEAD"]
    assert await direct.get("a") == b"ours"


async def test_a_store_that_lies_about_success_is_found_out(stores, faulty):
    store, direct = stores
    await store.put("warm", b"")
    faulty.fault = first_times(1, is_put, LIE)
    with pytest.raises(StoreError, match="reported that a was stored, but it is missing"):
        await store.put("a", b"x")
    with pytest.raises(NotStoredError):
        await direct.get("a")


async def test_a_large_object_is_one_request_and_leaves_no_parts(stores, faulty):
    store, _ = stores
    await store.put("warm", b"")
    faulty.requests.clear()
    await store.put("large", bytes(20_000_000))
    assert [(one.method, "?" in one.target) for one in faulty.requests] == [("PUT", False), ("HEAD", False)]
    await store.put("large", bytes(20_000_000), if_absent=False)
    assert [one.method for one in faulty.requests[2:]] == ["PUT"]


async def test_a_listing_is_read_by_pages(stores, faulty):
    store, direct = stores
    names = [f"{number:04}" for number in range(1100)]

    async def put(some):
        for name in some:
            await obstore.put_async(direct._client, f"many/{name}", b"x")

    await asyncio.gather(*(put(names[start::16]) for start in range(16)))
    assert [one.path for one in await store.list("many/")] == [f"many/{name}" for name in names]
    listings = [one.target for one in faulty.requests]
    assert len(listings) == 2
    assert "continuation-token" in listings[1]


async def test_what_a_killed_trial_of_the_store_left_is_hidden_and_removed_once_it_is_old(stores, faulty):
    store, _ = stores
    await obstore.put_async(store._client, ".tmp/trial-1", b"")
    await store.put("a", b"x")
    [one] = await store.list()
    assert one.path == "a"
    assert await store.remove_leftovers(600, one.modified) == 0
    assert await store.remove_leftovers(600, one.modified + 700) == 1
    assert await store.remove_leftovers(600, one.modified + 700) == 0
    removals = [request.method for request in faulty.requests if request.method not in ("PUT", "GET", "HEAD")]
    assert removals == ["DELETE", "DELETE"]  # of store.put's own trial, and of this one; many servers know no other way
    assert await store.get("a") == b"x"


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ({"encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"encryption": "aws:kms", "kms_key": "key-1"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "key-1"},
        ),
    ],
)
async def test_s3_is_asked_to_encrypt_what_it_stores(settings, headers, s3, faulty):
    store = open_store(s3.url("encrypted", endpoint=faulty.endpoint, **settings))
    faulty.fault = lambda request: Say(403, "AccessDenied")
    with pytest.raises(StoreUnreadableError):
        await store.put("a", b"x")
    assert headers.items() <= faulty.requests[0].headers.items()


REFUSALS = {
    "clock": (Say(403, "RequestTimeTooSkewed"), "this machine's clock is wrong"),
    "region": (Say(400, "AuthorizationHeaderMalformed"), r"in another region .*: set region"),
    "redirect": (Say(301), r"in another region .*: set region"),
    "rights": (Say(403, "AccessDenied"), r"does not allow it \(403 AccessDenied, while .*\): give these credentials"),
    "expired": (Say(403, "ExpiredToken"), "refused our credentials"),
    "overload": (Say(503, "SlowDown"), r"answered 503 SlowDown \(while .*\): see the store's log"),
    "no bucket": (Say(404, "NoSuchBucket"), r"there is no bucket 'lake' \(while .*\): create it, or correct the URL"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_a_store_refuses_is_one_sentence_with_what_to_do(name, stores, faulty):
    store, _ = stores
    said, sentence = REFUSALS[name]
    faulty.fault = lambda request: said
    for call in (store.put("a", b"x"), store.get("a"), store.list("a/")):
        with pytest.raises(StoreError, match=sentence) as raised:
            await call
        assert "\n" not in str(raised.value)


async def test_wrong_credentials_are_named_and_no_secret_is_shown(s3, bare_environment):
    for name, value in (("AWS_SECRET_ACCESS_KEY", "wrong-secret"), ("AWS_ACCESS_KEY_ID", "nobody")):
        bare_environment.setenv(name, value)
        for call in (lambda store: store.put("a", b"x"), lambda store: store.get("a"), lambda store: store.list()):
            with pytest.raises(StoreUnreadableError, match=r"refused our credentials .*AWS_ACCESS_KEY_ID") as raised:
                await call(open_store(s3.url()))
            shown = "".join(traceback.format_exception(raised.value)) + repr(open_store(s3.url()))
            assert "wrong-secret" not in shown
            assert SECRET not in shown
            assert "Signature" not in shown.replace("SignatureDoesNotMatch", "")


async def test_without_credentials_the_variables_are_named(s3, bare_environment):
    bare_environment.delenv("AWS_ACCESS_KEY_ID")
    bare_environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnreadableError, match=r"no credentials were found \(.*\): set AWS_ACCESS_KEY_ID and"):
        await open_store(s3.url()).list()


async def test_a_bucket_that_is_not_there_is_named(s3, azure):
    for store, what in (
        (open_store(s3.url().replace("//lake/", "//ocean/")), "no bucket 'ocean'"),
        (open_store(azure.url().replace("//lake/", "//ocean/")), "no container 'ocean'"),
    ):
        for call in (store.put("a", b"x"), store.get("a"), store.get_range("a", 0, 1), store.list()):
            with pytest.raises(StoreUnreadableError, match=rf"{what} \(while .*\): create it, or correct the URL"):
                await call


async def test_azures_wrong_key_is_named_and_no_signature_is_shown(azure, bare_environment):
    bare_environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3JvbmctYXp1cmUta2V5")
    with pytest.raises(StoreUnreadableError, match=r"refused our credentials .*AZURE_STORAGE_ACCOUNT_KEY"):
        await open_store(azure.url()).put("a", b"x")
    bare_environment.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    bare_environment.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021&sig=leaking-signature")
    store = open_store(azure.url())
    for call in (store.put("a", b"x"), store.get("a"), store.get_range("a", 1, 1), store.list(), store.delete("a")):
        with pytest.raises(StoreUnreadableError) as raised:
            await call
        assert "leaking-signature" not in "".join(traceback.format_exception(raised.value))


async def test_tls_is_the_default_and_what_is_wrong_with_it_is_said(s3, bare_environment):
    plain = f"127.0.0.1:{s3.plain_port}"
    cases = [
        (s3.url(ca=""), "its certificate is not trusted .*: set ca to its authority's PEM file"),
        (s3.url(endpoint=f"https://{plain}"), "its endpoint does not use TLS"),
        (s3.url(endpoint=""), "its endpoint is not encrypted.*: use https, or set plain_http = true"),
    ]
    bare_environment.setenv("AWS_ENDPOINT_URL_S3", f"http://{plain}")  # of use for the last one only
    for url, sentence in cases:
        with pytest.raises(StoreUnreadableError, match=sentence):
            await open_store(url).put("a", b"x")
    await open_store(s3.url("said", endpoint=f"http://{plain}", plain_http="true")).put("a", b"x", if_absent=False)
    bare_environment.setenv("AWS_ALLOW_HTTP", "true")
    await open_store(s3.url("said", endpoint="")).put("b", b"x", if_absent=False)

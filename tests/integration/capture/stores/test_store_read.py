import asyncio

import pytest
from archived import ARCHIVE, NOW, Archived, store_block

import capture
from capture.archive import chain
from capture.archive.encryption import Keys
from capture.archive.history import recording_at
from capture.archive.identity import claim
from capture.archive.recording import HOUR, Recording
from capture.archive.trust import check_contents
from capture.errors import FormatError, ManifestError, NotStoredError
from capture.formats import writer
from capture.maintenance.merge.inputs import fetch_blocking
from capture.reading.duck import query
from capture.reading.merge import make_look, merge_shares
from capture.reading.shares import plan_shares
from capture.stores import open_store
from capture.stores.contract import REQUESTS_AT_ONCE
from capture.verification.audit import audit
from natty.wire.background import map_concurrently

KEYS = Keys({"k": bytes(32)})
STREAM = "ORDERS"


async def test_an_archive_in_s3_over_tls_is_read_and_asked_about_like_any_other(s3):
    archived = Archived()
    store = archived.store = open_store(s3.url())
    await claim(store, STREAM, STREAM, "2026-11-21T00:00:00Z")
    await store_block(store, range(1, 6))
    await archived.sweep()
    await archived.compact()
    await store_block(store, range(5, 9))  # some of it is compacted already
    await store_block(store, [9, 11], writer("ndjson", compression="zstd", keys=KEYS))
    await store_block(store, [10, 12])
    read = [message.sequence async for message in capture.read(store.url, keys=KEYS)]
    assert read == list(range(1, 13))
    objects = await make_look(store)()
    counted = "SELECT count(*), count(DISTINCT sequence), sum(octet_length(payload)) FROM messages WHERE sequence > 2"
    answer = await query(store, objects, counted, keys=KEYS)
    joined = await query(store, objects, "SELECT count(*) FROM messages a JOIN messages b USING (sequence)", keys=KEYS)
    lengths = sum([len(one.payload) async for one in capture.read(store, keys=KEYS, start_sequence=3)])
    assert (answer.rows, joined.rows) == ([[10, 10, lengths]], [[12]])

    changed = next(one for one in objects if one.first == 10)
    await store.put(changed.path, (await store.get(changed.path))[:-1], if_absent=False)
    with pytest.raises(FormatError, match=changed.path):
        [message async for message in capture.read(store, keys=KEYS)]


async def copied(archived, url):
    """A copy of a whole archive in another store."""
    store = open_store(url)
    await map_concurrently(
        await archived.paths(), lambda path: _copy(archived.store, store, path), at_once=REQUESTS_AT_ONCE
    )
    return store


async def _copy(source, target, path):
    await target.put(path, await source.get(path))


@pytest.mark.long
async def test_any_hour_of_the_history_in_s3_is_found_and_proven_by_a_few_requests(s3, faulty):
    archived, hours = Archived(), 300
    for hour in range(hours):
        archived.now = NOW + hour * HOUR
        await archived.record(state={"messages": hour, "first_seq": 1, "last_seq": hour + 1})
    direct = await copied(archived, s3.url("history"))
    store = open_store(s3.url("history", endpoint=faulty.endpoint))
    newest = await chain.read(direct, await chain.latest_offline(direct, Recording), Recording)
    for hour in (0, 1, 99, 250, hours - 1):
        faulty.requests.clear()
        found = await recording_at(store, newest, NOW + hour * HOUR + 60)
        assert found.streams[STREAM].state["messages"] == hour
        assert len(faulty.requests) <= 5
    audited = await audit(store, archive=ARCHIVE, deep=True)
    assert (audited.problems, audited.documents > hours) == ((), True)

    path = (await archived.paths("_history/"))[99]
    await direct.put(path, (await direct.get(path)).replace(b"ORDERS", b"ORDER5"), if_absent=False)
    with pytest.raises(ManifestError, match=f"{path} was changed"):
        await recording_at(store, newest, NOW + 99 * HOUR + 60)
    assert [one for one in (await audit(store, archive=ARCHIVE, deep=True)).problems if path in one]
    await direct.delete(path)
    with pytest.raises(NotStoredError, match=path):
        await recording_at(store, newest, NOW + 99 * HOUR + 60)


async def test_small_objects_in_s3_are_each_read_by_one_request_whoever_reads_them(s3, faulty):
    archived = Archived()
    for number in range(1, 101):
        await store_block(archived.store, [number])
    await copied(archived, s3.url("small"))
    store = open_store(s3.url("small", endpoint=faulty.endpoint))
    objects = sorted(await make_look(store)(), key=lambda one: one.first)

    async def count(work):
        faulty.requests.clear()
        assert await work == 100
        return len(faulty.requests)

    async def merged():
        return sum([len(batch) async for batch in merge_shares(store, plan_shares(objects))])

    async def asked():
        return (await query(store, objects, "SELECT count(DISTINCT sequence), sum(sequence) FROM messages")).rows[0][0]

    async def fetched():
        return len(await asyncio.to_thread(lambda: list(fetch_blocking(store, objects))))

    async def checked():
        return len((await check_contents(store, objects)).digests)

    assert [await count(work()) for work in (merged, asked, fetched, checked)] == [100] * 4

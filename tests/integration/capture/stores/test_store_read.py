import pytest
from archived import Archived, store_block

import capture
from capture.archive.encryption import Keys
from capture.archive.identity import claim
from capture.errors import FormatError
from capture.formats import writer
from capture.reading.duck import query
from capture.reading.merge import make_look
from capture.stores import open_store

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

"""Leaders of an archive that is signed: what they go on from, and what they refuse."""

import pytest

from capture.archive import chain
from capture.archive.chain import commit, current, document_path
from capture.archive.identity import claim, list_claimed
from capture.archive.manifest import Manifest
from capture.archive.signing import Signer, SigningKeys, split
from capture.errors import ConfigError, ManifestError, SignatureError
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead

MINE, OTHER = SigningKeys({"mine": bytes(32)}), SigningKeys({"other": bytes(range(32))})
BOTH = SigningKeys({"other": bytes(range(32)), "mine": bytes(32)})
NOW = 1e6


def term(token, state, keys=MINE):
    return MemoryHead(token, state, keys and Signer("orders", keys))


async def begun(keys=MINE):
    """An archive of one committed manifest."""
    store, state = MemoryStore(), HeadState()
    await current(store, term(1, state, keys), Manifest, NOW)
    return store, state


async def test_what_a_term_commits_is_signed_for_its_place():
    store, state = await begun()
    data = await store.get(state.head.path)
    assert split(data)[1].key == "mine"
    MINE.public.check("orders", state.head.path, data)
    assert (await chain.read(store, state.head, Manifest)).number == 1


@pytest.mark.parametrize("token", [1, 2])
async def test_a_leader_without_the_key_is_refused_and_changes_nothing(token):
    store, state = await begun()
    before = state.head
    with pytest.raises(SignatureError, match="signed with the key 'mine', and this node has no key to sign with"):
        await current(store, term(token, state, None), Manifest, NOW)
    assert state.head == before
    assert len(await store.list()) == 1


async def test_a_leader_with_another_key_is_refused_until_it_trusts_the_old_one():
    store, state = await begun()
    with pytest.raises(SignatureError, match="the trusted ones are"):
        await current(store, term(2, state, OTHER), Manifest, NOW)
    head, _ = await current(store, term(2, state, BOTH), Manifest, NOW)
    assert split(await store.get(head.path))[1].key == "other"


async def test_signing_begins_where_the_head_vouches_for_what_is_not_signed():
    store, state = await begun(keys=None)
    head, _ = await current(store, term(2, state), Manifest, NOW)
    assert split(await store.get(head.path))[1].key == "mine"


async def test_signing_begins_too_after_a_leader_without_a_key_died_before_its_commit():
    store, state = await begun(keys=None)
    await commit(store, MemoryHead(1, HeadState()), state.head, Manifest(leader="died"))
    _, manifest = await current(store, term(2, state), Manifest, NOW)
    assert manifest.leader == "died"


async def forged(store, number, keys=None, archive="orders", **fields):
    """Put a manifest there, newer than all, as somebody can who may write to the store."""
    path = document_path(Manifest, number, 9)
    state = HeadState()
    forger = MemoryHead(9, state, keys and Signer(archive, keys))
    previous = chain.Head(number - 1, 9, "", "")
    await commit(store, forger, previous, Manifest(leader="forged", **fields))
    return path


@pytest.mark.parametrize(
    ("keys", "archive", "why"),
    [
        (None, "", "is not signed"),
        (OTHER, "orders", "the trusted ones are"),
        (SigningKeys({"mine": bytes(range(32))}), "orders", "wrong signature"),
        (MINE, "another archive", "wrong signature"),
    ],
)
async def test_a_newer_manifest_that_was_put_there_is_not_taken_up(keys, archive, why):
    store, state = await begun()
    before, path = state.head, await forged(store, 2, keys, archive)
    for token in (1, 2):
        with pytest.raises(SignatureError, match=f"{path} .*{why}|{path} {why}"):
            await current(store, term(token, state), Manifest, NOW)
    assert state.head == before


async def test_after_nats_has_lost_its_head_only_what_is_signed_is_taken_up():
    store, _ = await begun()
    head, _ = await current(store, term(2, HeadState()), Manifest, NOW)
    assert head.number == 2
    await forged(store, 3)
    with pytest.raises(SignatureError, match="is not signed"):
        await current(store, term(10, HeadState()), Manifest, NOW)


async def test_an_older_manifest_under_a_newer_name_is_not_taken_up_signed_or_not():
    for keys in (MINE, None):
        store, state = await begun(keys)
        old = await store.get(state.head.path)
        await current(store, term(2, state, keys), Manifest, NOW)
        await store.put(document_path(Manifest, 8, 9), old)
        with pytest.raises((SignatureError, ManifestError), match=r"_manifest/0000000008-9\.json"):
            await current(store, term(3, state, keys), Manifest, NOW)


async def test_a_document_says_where_it_belongs():
    store, state = await begun(keys=None)
    data, path = await store.get(state.head.path), document_path(Manifest, 8, 9)
    with pytest.raises(ManifestError, match=f"{path} holds document 1 of term 1: it is in another document's place"):
        chain.decode(data, path, Manifest)


async def test_the_first_node_writes_down_the_public_key_and_a_node_without_one_does_not_start():
    store = MemoryStore("a")
    await claim(store, "orders", "ORDERS", "03:00", Signer("orders", MINE))
    with pytest.raises(ConfigError, match="is signed, with the key mine, and this node has no key to sign with"):
        await claim(store, "orders", "ORDERS", "03:00")
    await claim(store, "orders", "ORDERS", "03:00", Signer("orders", OTHER))
    declared = (await store.get("_signing.json")).decode()
    assert all(key in declared for key in BOTH.public.lines().values())


async def test_an_archive_that_is_not_signed_declares_nothing():
    store = MemoryStore("a")
    await claim(store, "orders", "ORDERS", "03:00")
    assert [one.path for one in await store.list()] == ["README.md", "_archive.json", "_streams/ORDERS.json"]


async def test_the_streams_of_an_archive_are_known_by_what_was_claimed():
    store = MemoryStore("a")
    for name in ("ORDERS", "TICKS", "a b"):
        await claim(store, "orders", name, "03:00")
    assert sorted(one.stream for one in await list_claimed(store)) == ["ORDERS", "TICKS", "a b"]
    assert [one.stream for one in await list_claimed(store, ["ORDERS", "a b"])] == ["TICKS"]

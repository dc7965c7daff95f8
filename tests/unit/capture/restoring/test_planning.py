"""A plan that is made page by page is the one that a list of all objects would give, and so are its shares."""

from dataclasses import fields, replace
from functools import partial
from heapq import heappop, heappush

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from supplying import SECOND, put

from capture.archive.index import contents, tree
from capture.archive.index.page import place_of
from capture.archive.index.tree import ALL, Index, Sizes
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.recording import StreamRecord
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import ManifestError, NotStoredError, RestoreRefusedError
from capture.reading import inventory as inventory_module
from capture.reading import merge, supply
from capture.reading.inventory import Inventory
from capture.reading.shares import Selection, narrow, shares
from capture.reading.supply import Supply
from capture.restoring.past import Past, Window, list_held_then
from capture.restoring.pick import rows_of
from capture.restoring.plan import Options, Plan, Target, plan_restore
from capture.restoring.prepare import draw_plan
from capture.stores import MemoryStore
from capture.stores.recent import Recent

PAGES = Sizes(leaf=900, inner=700, apart=60, inline=0)
MOST = 60
TARGET = Target(version=(2, 15, 1), streams={})
BLOCK = st.tuples(
    st.sets(st.integers(1, MOST), min_size=1, max_size=12),
    st.sampled_from(["parquet", "raw", "csv"]),
    st.sampled_from(["block", "consumed", "file", "waiting"]),
    st.integers(0, 2),  # interval and key
    st.booleans(),  # whether its times are recorded
)
WINDOWS = st.builds(
    Window,
    at_ns=st.none() | st.integers(0, MOST + 2).map(lambda one: one * SECOND),
    to_sequence=st.none() | st.integers(1, MOST + 2),
    start=st.none() | st.integers(1, MOST + 2),
    subjects=st.sampled_from([(), (), ("s.1",), ("s.0", "s.2")]),
    everything=st.booleans(),
) | st.builds(Window, start_ns=st.integers(0, MOST + 2).map(lambda one: one * SECOND))


async def kept(store, document):
    """Return a document with an index in the store, in place of its list."""
    found, pages = await contents.renew(Index(store, document.PAGES), document)
    for path, data in pages.items():
        await store.put(path, data)
    return found


async def archive_of(blocks):
    """Return a store, the inventory of an archive with these objects, and the records that it has."""
    store, found = MemoryStore("a"), {"block": [], "consumed": [], "file": [], "waiting": []}
    for number, (sequences, format, state, place, timed) in enumerate(blocks):
        path = f"{'table' if state == 'file' else 'blocks'}/{number}"
        one = await put(store, path, sequences, format)
        one = msgspec.structs.replace(one, key=f"k{place}", interval=place)
        if not timed:
            one = msgspec.structs.replace(one, min_ns=0, max_ns=0)
        found[state].append(one)
    manifest = await kept(store, Manifest(blocks=[*found["block"], *found["consumed"]]))
    table = await kept(store, Table(files=found["file"], consumed=[place_of(one) for one in found["consumed"]]))
    objects = [*found["block"], *found["file"], *found["waiting"]]
    return store, Inventory(store, Picture(manifest, table, tree.Where(stream="S")), found["waiting"]), objects


def past_of(inventory, held, deleted, max_age):
    state = {"messages": MOST, "bytes": 1000, "first_seq": 1, "last_seq": MOST} if deleted is not None else {}
    record = StreamRecord(created="", state=state, deleted=Sequences.from_iterable(deleted or ()).to_text())
    return Past(
        stream="S", archive="S", config={"name": "S", "subjects": ["s.>"], "metadata": {}, "max_age": max_age},
        record=record if deleted is not None else None, recorded=0.0, objects=inventory, held=held,
        removed=Sequences.from_range(5, 7),
    )  # fmt: skip


class PlainSurvey:
    """The sums of a list of records, in sets."""

    def __init__(self, objects, before_ns):
        fit = [one for one in objects if one.format != "csv"]
        unfit = sorted(one.path for one in objects if one.format == "csv")
        self.unfit, self.an_unfit = len(unfit), unfit[0] if unfit else ""
        self.objects, self.bytes, self._objects = len(fit), sum(one.bytes for one in fit), fit
        self.fit = held_by(fit)
        self.old = held_by(one for one in fit if 0 < one.max_ns < before_ns)

    def count_crowded(self):
        count, open_ends = 0, []
        for one in sorted(self._objects, key=lambda one: one.first):
            while open_ends and open_ends[0] < one.first:
                heappop(open_ends)
            count += len(open_ends) >= merge.FAN_IN
            heappush(open_ends, one.last)
        return count


def held_by(objects):
    return Sequences.from_iterable(n for one in objects for n in Sequences.from_bytes(one.sequences))


def plain_plan(past, objects, window, now):
    """Return the plan by a list of all records, and its shares; times and subjects are those of `test_pick.block`."""
    fit, wanted = [one for one in objects if one.format != "csv"], list_held_then(past, window)
    first, last = (wanted.first, wanted.last) if wanted else (MOST + 9, MOST + 9)
    until_ns = None if window.at_ns is None else window.at_ns + 1
    selection = Selection(since_ns=window.start_ns, until_ns=until_ns, subjects=window.subjects)
    if selection.columns:
        wanted = Sequences.from_iterable(
            one
            for one in wanted & held_by(fit)
            if (window.start_ns is None or one * SECOND >= window.start_ns)
            and (window.at_ns is None or one * SECOND <= window.at_ns)
            and (not window.subjects or f"s.{one % 3}" in window.subjects)
        )
    where = replace(selection.where, sequences=(first, last))
    age = past.config["max_age"]
    survey = PlainSurvey([one for one in objects if where.finds(one)], now * 1e9 - age if age else 0)
    plan = plan_restore(past, survey, Supply(past.objects, ALL), wanted, Options(window=window), TARGET)
    return plan, narrow(shares(fit), plan.wanted)


def without_supply(plan):
    return {one.name: getattr(plan, one.name) for one in fields(Plan) if one.name != "supply"} | {"s": plan.seconds}


def told(share):
    one = share.stored
    return one.path, one.sequences, one.sha256, share.given, share.withheld


@settings(max_examples=60)
@given(
    st.lists(BLOCK, max_size=14),
    WINDOWS,
    st.none() | st.sets(st.integers(1, MOST), max_size=8),
    st.sampled_from([0, 20 * SECOND]),
)
@pytest.mark.long
async def test_a_plan_page_by_page_is_that_of_a_list_of_all_objects(blocks, window, deleted, max_age):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "SIZES", PAGES)
        patch.setattr(merge, "FAN_IN", 4)
        patch.setattr("capture.restoring.survey.FAN_IN", 4)
        patch.setattr("capture.restoring.survey.FEW", 2)
        patch.setattr("capture.archive.sequences.MOST_WAITING", 3)
        patch.setattr(supply, "NEAR", 8)
        patch.setattr(inventory_module, "AHEAD", 2)
        store, inventory, objects = await archive_of(blocks)
        held = await inventory.find_held("S")
        assert held == held_by(objects)
        past = past_of(inventory, held, deleted, max_age)
        plan = await draw_plan(past, Options(window=window), TARGET, store, now=float(MOST))
        expected, plain_shares = plain_plan(past, objects, window, float(MOST))
        assert without_supply(plan) == without_supply(expected)
        assert [told(one) async for one in plan.supply.shares(plan.wanted)] == [told(one) for one in plain_shares]
        tables = [table async for table in rows_of(store, plan.supply, plan.wanted)]
        assert [one for table in tables for one in table["sequence"].to_pylist()] == list(plan.wanted)


async def many(count=12, keys=3, **options):
    """Return an archive of blocks whose sequences are interleaved."""
    return await archive_of(
        [(range(1 + key, count * keys, keys), "parquet", "block", key, True) for key in range(keys)], **options
    )


async def plan_all(store, inventory, window=None):
    past = past_of(inventory, await inventory.find_held("S"), None, 0)
    return await draw_plan(past, Options(window=window or Window()), TARGET, store, now=0.0)


@pytest.mark.parametrize("few", [1, 10**9], ids=["looked for one by one", "compared with a listing"])
@pytest.mark.parametrize(("data", "said"), [(None, "is missing"), (b"short", "has another size than its record says")])
async def test_an_object_of_the_window_that_is_not_as_recorded_is_refused(monkeypatch, few, data, said):
    monkeypatch.setattr("capture.restoring.survey.FEW", few)
    store, inventory, objects = await archive_of(
        [(range(10 * one + 1, 10 * one + 11), "parquet", "block", 0, True) for one in range(6)]
    )
    await store.delete(objects[1].path)
    if data is not None:
        await store.put(objects[1].path, data)
    with pytest.raises(RestoreRefusedError, match=f"^{objects[1].path} {said}: see `capture verify`$"):
        await plan_all(store, inventory)
    assert (await plan_all(store, inventory, Window(start=21))).messages == 40


async def test_a_recording_without_the_size_of_the_stream_plans_the_size_of_the_objects():
    _, inventory, objects = await archive_of([(range(1, 11), "parquet", "block", 0, True)])
    past = past_of(inventory, await inventory.find_held("S"), (), 0)
    past.record.state.pop("bytes")
    plan = plain_plan(past, objects, Window(), 0.0)[0]
    assert plan.bytes == sum(one.bytes for one in objects) > 0


async def test_sums_that_name_more_than_the_objects_hold_leave_sequences_that_are_missing():
    blocks = [(range(1, 11), "parquet", "block", 0, True), (range(13, 21), "parquet", "block", 1, True)]
    store, inventory, _ = await archive_of(blocks)
    past = past_of(inventory, await inventory.find_held("S") | Sequences.from_range(11, 12), None, 0)
    plan = await draw_plan(past, Options(), TARGET, store, now=0.0)
    assert list(plan.gaps) == [11, 12]
    assert "2 sequences (11–12) are not in the archive: `capture verify` says why" in plan.not_kept


async def test_a_page_or_an_object_that_was_replaced_meanwhile_is_read_as_it_is_then(monkeypatch):
    monkeypatch.setattr(tree, "SIZES", PAGES)
    blocks = [(range(20 * one + 1, 20 * one + 21), "parquet", "block", 0, True) for one in range(40)]
    for prefix in ("_index/", "blocks/39"):
        store, inventory, _ = await archive_of(blocks)
        plan = await plan_all(store, inventory)
        newer_store, newer, _ = await archive_of(
            [(sequences, format, "file", *rest) for sequences, format, _, *rest in blocks]
        )
        seen = []
        async for table in rows_of(store, plan.supply, plan.wanted):
            if not seen:
                inventory.renew = partial(_return, newer)
                for one in await store.list(prefix):
                    await store.delete(one.path)
                for one in await newer_store.list():
                    await store.put(one.path, await newer_store.get(one.path), if_absent=False)
            seen += table["sequence"].to_pylist()
        assert seen == list(range(1, 801))


async def _return(newer):
    return newer


async def test_what_stays_gone_after_the_archive_was_read_again_is_the_error(monkeypatch):
    monkeypatch.setattr(tree, "SIZES", PAGES)
    for prefix, error in (("_index/", ManifestError), ("blocks/0", NotStoredError)):
        store, inventory, _ = await many()
        plan = await plan_all(store, inventory)
        inventory.renew = partial(_return, inventory)
        inventory._indexes.blocks._cache = Recent()
        for one in await store.list(prefix):
            await store.delete(one.path)
        with pytest.raises(error):
            _ = [table async for table in rows_of(store, plan.supply, plan.wanted)]

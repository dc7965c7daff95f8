import msgspec
import pytest
from archived import ARCHIVE, CONFIG, CREATED, STREAM, Archived
from hypothesis import given
from hypothesis import strategies as st

from capture.archive import chain
from capture.archive.chain import KEPT, document_path
from capture.archive.recording import (
    DELETED_A_SECOND,
    HOUR,
    Consumer,
    Position,
    Recording,
    Seen,
    StreamRecord,
    Unacked,
    history_path,
    is_unaware,
    resume,
    update_record,
)
from capture.archive.sequences import Sequences
from capture.verification.audit import audit
from natty.streams.listing import Listing

STATE = {"messages": 3, "first_seq": 1, "last_seq": 5, "num_deleted": 2, "of_a_newer_server": [1]}
EMPTY = StreamRecord(created=CREATED)


def consumer(name, floor, *, durable=True, **more):
    config = {"name": name, "ack_policy": "explicit", "new": {"kept": True}} | (
        {"durable_name": name} if durable else {}
    )
    position = {"consumer_seq": floor, "stream_seq": floor + 10, "last_active": "2026-11-21T03:00:00Z"}
    return {
        "name": name,
        "created": CREATED,
        "config": config,
        "delivered": position | {"consumer_seq": floor + 1},
        "ack_floor": position,
        "num_pending": 7,
        **more,
    }


def seen(config=None, state=None, deleted=None, consumers=(), missing=()):
    return Seen(
        config=config or CONFIG,
        state=state or STATE,
        deleted=None if deleted is None else Sequences.from_iterable(deleted),
        consumers=Listing(list(consumers), list(missing)),
    )


def test_each_configuration_is_kept_word_for_word_with_the_time_and_the_sequences_of_its_change():
    first = update_record(EMPTY, seen(), 100.0)
    again = update_record(first, seen(state=STATE | {"last_seq": 8}), 110.0)
    changed = CONFIG | {"max_age": 5}
    last = update_record(again, seen(config=changed, state=STATE | {"first_seq": 4, "last_seq": 9}), 120.0)
    assert [(one.since, one.first_seq, one.last_seq, one.config) for one in last.configurations] == [
        (100.0, 1, 5, CONFIG),
        (120.0, 4, 9, changed),
    ]
    assert last.state == STATE | {"first_seq": 4, "last_seq": 9}
    assert update_record(last, seen(config=CONFIG), 130.0).configurations[-1].since == 130.0  # changed back


def test_what_has_not_changed_makes_no_new_record():
    one = update_record(EMPTY, seen(deleted=[2, 3], consumers=[consumer("a", 1)]), 100.0)
    assert update_record(one, seen(deleted=[2, 3], consumers=[consumer("a", 1, num_waiting=3)]), 200.0) == one
    assert update_record(one, seen(consumers=[consumer("a", 1)]), 200.0) == one


def test_what_was_deleted_once_stays_so():
    one = update_record(EMPTY, seen(deleted=[2, 3]), 100.0)
    two = update_record(one, seen(state=STATE | {"first_seq": 4}, deleted=[7]), 110.0)
    assert list(Sequences.from_text(two.deleted)) == [2, 3, 7]
    assert two.deleted_seen == 110.0
    assert Recording(streams={"S": two}).find_deleted("S") == Sequences.from_iterable([2, 3, 7])
    assert not Recording().find_deleted("S")


def test_consumers_are_recorded_with_their_positions_and_ephemeral_ones_are_marked():
    record = update_record(EMPTY, seen(consumers=[consumer("d", 5), consumer("e", 1, durable=False)]), 100.0)
    assert record.consumers["d"].config == consumer("d", 5)["config"]
    assert record.consumers["d"].delivered == Position(6, 15)
    assert record.consumers["d"].ack_floor == Position(5, 15)
    assert [record.consumers[name].ephemeral for name in ("d", "e")] == [False, True]


def test_a_consumer_that_is_gone_is_forgotten_and_one_that_nobody_answers_for_is_not():
    record = update_record(EMPTY, seen(consumers=[consumer("a", 1), consumer("b", 2)]), 100.0)
    record = update_record(record, seen(missing=["b", "unknown"]), 110.0)
    assert list(record.consumers) == ["b"]
    assert record.consumers["b"].ack_floor == Position(2, 12)


def stood(floor, delivered=(20, 17), unacked=None, pending=None, **config):
    held = None if pending is None else {one: Unacked(one + 3, 5) for one in pending}
    return Consumer(
        created=CREATED,
        ephemeral=False,
        config={"ack_policy": "explicit"} | config,
        delivered=Position(*delivered),
        ack_floor=Position(*floor),
        unacked=unacked,
        pending=held,
    )


BEGINS_AT_5 = {"deliver_policy": "by_start_sequence", "opt_start_seq": 5}


@pytest.mark.parametrize(
    ("one", "place", "contradicts"),
    [
        (stood((3, 2)), (3, 2), False),
        (stood((0, 4)), (0, 4), False),  # began behind the stream's first message, and has acknowledged nothing
        (stood((0, 0), (0, 0)), (0, 0), False),
        (stood((3, 2), unacked=4), (3, 2), False),
        (stood((3, 2), unacked=0), (20, 17), False),  # the rest was delivered as often as it may be
        (stood((3, 2), pending=[]), (20, 17), False),
        (stood((3, 2), ack_policy="none"), (20, 17), False),
        (stood((2721, 0), (17600, 17558), unacked=0), (17600, 17558), True),
        (stood((2721, 0), (17600, 17558)), (0, 0), True),  # by an earlier version: it is not recorded how many
        (stood((2721, 0), (17600, 17558), unacked=3), (0, 0), True),
        (stood((2721, 0), (17600, 17558), **BEGINS_AT_5), (0, 4), True),
        (stood((9, 0), pending=[6, 9]), (8, 5), True),
        (stood((9, 6), pending=[6, 9]), (8, 5), True),
        (stood((8, 5), pending=[6, 9]), (8, 5), False),
        (stood((30, 30), unacked=0), (20, 17), True),
        (stood((30, 30)), (0, 0), True),
        (stood((-3, -2), unacked=0), (20, 17), True),
        (stood((3, 10**30)), (0, 0), True),
        (stood((3, 2), (2**63, 17), unacked=0), (0, 0), True),
        (stood((3, 2), (20, -1), unacked=0, **BEGINS_AT_5), (0, 4), True),
        (stood((3, 2), (20, 0), ack_policy="none"), (0, 0), True),
        (stood((9, 0), deliver_policy="by_start_sequence", opt_start_seq="x"), (0, 0), True),
    ],
)
def test_a_consumer_goes_on_where_nothing_contradicts_that_all_before_is_acknowledged(one, place, contradicts):
    found, contradiction = resume(one)
    assert (found, bool(contradiction)) == (Position(*place), contradicts)
    assert found.is_possible


def test_an_ack_floor_that_can_t_be_true_is_not_recorded_where_the_true_one_is_known():
    told = consumer("a", 2721, delivered={"consumer_seq": 17600, "stream_seq": 17558})
    told["ack_floor"] = {"consumer_seq": 2721, "stream_seq": 0}
    done, busy = told | {"num_ack_pending": 0}, told | {"name": "b", "num_ack_pending": 2}
    record = update_record(EMPTY, seen(consumers=[done, busy]), 100.0)
    assert record.consumers["a"].ack_floor == record.consumers["a"].delivered == Position(17600, 17558)
    assert (record.consumers["b"].ack_floor, record.consumers["b"].unacked) == (Position(2721, 0), 2)


def test_a_recording_survives_its_encoding():
    record = update_record(EMPTY, seen(deleted=[2], consumers=[consumer("a", 1)]), 100.0)
    of_backup = stood((3, 2), pending=[4, 2**40])
    record = msgspec.structs.replace(record, consumers={**record.consumers, "b": of_backup})
    recording = Recording(archive="orders", readme=1, streams={"S": record})
    assert msgspec.json.decode(msgspec.json.encode(recording), type=Recording) == recording


@pytest.mark.parametrize(
    ("known", "state", "unaware"),
    [
        ([], {"first_seq": 1, "last_seq": 9}, False),
        ([], {"first_seq": 1, "last_seq": 9, "num_deleted": 1}, True),
        ([2, 3], {"first_seq": 1, "last_seq": 9, "num_deleted": 2}, False),
        ([2, 3], {"first_seq": 3, "last_seq": 9, "num_deleted": 2}, True),  # as many, but not the same
        ([2, 3], {"first_seq": 4, "last_seq": 9}, False),  # the first sequence went past them
        ([2, 3], {"first_seq": 10, "last_seq": 9}, False),  # all is deleted
        ([], {"first_seq": 0, "last_seq": 0, "num_deleted": 1}, False),  # a stream that never held a message
    ],
)
def test_the_server_is_asked_for_its_list_only_where_it_counts_others_than_are_known(known, state, unaware):
    record = msgspec.structs.replace(EMPTY, deleted=Sequences.from_iterable(known).to_text())
    assert is_unaware(record, state, 1e9) is unaware


@given(st.sets(st.integers(2, 40)), st.sets(st.integers(2, 40)), st.integers(1, 41), st.integers(1, 41))
def test_a_server_that_is_not_asked_has_deleted_nothing_else(before, more, first, next_first):
    """Model: messages 1 to 50 but for the deleted; then the first sequence moves, and more are deleted."""

    def state(first, deleted):
        first = next(one for one in range(first, 51) if one not in deleted)
        inside = {one for one in deleted if one > first}
        return {"first_seq": first, "last_seq": 50, "num_deleted": len(inside)}, inside

    told, known = state(first, before)
    record = update_record(EMPTY, seen(state=told, deleted=known), 1e9)
    told, inside = state(max(first, next_first), before | more)
    if not is_unaware(record, told, 2e9):
        assert inside <= set(Sequences.from_text(record.deleted))


def test_a_long_list_is_asked_for_the_more_rarely():
    record = msgspec.structs.replace(EMPTY, deleted_seen=1000.0)
    state = {"first_seq": 1, "last_seq": 10**8, "num_deleted": 100 * DELETED_A_SECOND}
    assert not is_unaware(record, state, 1099.0)
    assert is_unaware(record, state, 1100.0)


def test_the_place_in_the_history_says_when_it_was():
    recording = Recording(number=12, token=3, created=1_795_230_000.0)
    assert history_path(recording) == "_history/2026-11-21/03-0000000012-3.json"


async def test_the_last_recording_of_each_hour_stays_as_it_was_and_leads_to_the_one_before():
    archived = Archived()
    for minutes in (0, 20, 59.9, 60, 70, 300, 301):
        archived.now = 1_795_230_000.0 + 60 * minutes
        await archived.record(state=STATE | {"last_seq": minutes})
    store, head = archived.store, archived.heads[Recording].head
    newest = await chain.read(store, head, Recording)
    told = []
    earlier = newest.earlier
    while earlier is not None:
        recording = msgspec.json.decode(await store.get(earlier.path), type=Recording)
        assert await store.get(earlier.path) == await store.get(document_path(Recording, recording.number, 1))
        assert history_path(recording) == earlier.path
        told.append(recording.streams[STREAM].state["last_seq"])
        earlier = recording.earlier
    assert told == [70, 59.9]
    assert len(await archived.paths("_history/")) == 2


async def test_old_recordings_are_removed_and_the_history_is_not():
    archived = Archived()
    count = KEPT + 10
    for number in range(count):
        archived.now += HOUR
        await archived.record(state=STATE | {"last_seq": number})
    assert len(await archived.paths("_recorded/")) == KEPT + 1  # the newest one is not deleted for itself
    assert len(await archived.paths("_history/")) == count - 1


@pytest.mark.parametrize("token", [1, 2])
@pytest.mark.parametrize("written", [True, False], ids=["before its commit", "before the document"])
async def test_a_leader_that_dies_after_it_wrote_the_history_leaves_nothing_that_others_mind(
    monkeypatch, token, written
):
    archived = Archived()
    await archived.record()
    archived.now += HOUR
    put = archived.store.put

    async def dying(path, data, **options):
        if not path.startswith("_recorded/"):
            return await put(path, data, **options)
        if written:
            await put(path, data, **options)
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(archived.store, "put", dying)
        with pytest.raises(TimeoutError):
            await archived.record(state=STATE | {"last_seq": 7})
    assert len(await archived.paths("_history/")) == 1
    archived.token = token
    await archived.record(state=STATE | {"last_seq": 8})
    assert (await audit(archived.store, archived.readers, archive=ARCHIVE, deep=True)).ok
    newest = await chain.read(archived.store, archived.heads[Recording].head, Recording)
    assert newest.streams[STREAM].state["last_seq"] == 8
    assert newest.earlier is not None

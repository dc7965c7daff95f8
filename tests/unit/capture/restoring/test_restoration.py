"""The plan of a restore, without a server: what is wanted, what will not be as it was, what stands in the way."""

import re
import time
from dataclasses import replace

import msgspec
import pytest
import typer
from retaining import stored
from supplying import inventory_of, records_of

from capture.archive.history import recording_at, recordings_around
from capture.archive.index.tree import ALL
from capture.archive.recording import Configuration, Consumer, Earlier, Position, Recording, StreamRecord, Unacked
from capture.archive.sequences import Sequences
from capture.cli.restore import _at, _speed, _start
from capture.errors import ManifestError
from capture.reading.supply import Supply
from capture.restoring.past import Past, Window, bounds, in_force, list_held_then
from capture.restoring.plan import Options, Target, find_too_old, plan_restore
from capture.restoring.replay import Pace, split_settings
from capture.restoring.survey import Survey
from capture.restoring.uptake import LIFTED, MARK, incomplete_config
from capture.stores import MemoryStore

NOW = 1_795_230_000.0
CONFIG = {"name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file", "max_age": 0, "metadata": {}}


def consumer(floor=3, ephemeral=False, **config):
    place = Position(consumer_seq=floor, stream_seq=floor)
    delivered = Position(consumer_seq=floor + 2, stream_seq=floor + 2)
    return Consumer(created="", ephemeral=ephemeral, config=config, delivered=delivered, ack_floor=place)


def past(first=1, last=10, deleted=(), consumers=None, objects=None, removed=(), **config):
    record = StreamRecord(
        created="",
        state={"messages": last - first + 1, "bytes": 1000, "first_seq": first, "last_seq": last},
        deleted=Sequences.from_iterable(deleted).to_text(),
        consumers=consumers or {},
    )
    objects = [stored(1, 10)] if objects is None else objects
    return Past(
        stream="S",
        archive="S",
        config=CONFIG | config,
        record=record,
        recorded=NOW,
        objects=inventory_of(objects),
        held=Sequences.union_of(Sequences.from_bytes(one.sequences) for one in objects),
        removed=Sequences.from_iterable(removed),
    )


def planned(known, streams=None, version=(2, 15, 1), account=None, **options):
    window = Window(**{name: options.pop(name) for name in Window.__dataclass_fields__ if name in options})
    target = Target(version=version, streams=streams or {}, account=account or {})
    wanted = list_held_then(known, window)
    survey = Survey(records_of(known.objects), before_ns=find_too_old(known.config, NOW))
    supply = Supply(known.objects, ALL)
    return plan_restore(known, survey, supply, wanted, Options(window=window, **options), target)


def test_the_stream_is_as_recorded_last_and_what_was_stored_after_that_comes_too():
    assert list(planned(past(first=3, last=8, deleted=[5, 6])).wanted) == [3, 4, 7, 8, 9, 10]
    plan = planned(past(first=3, last=12, deleted=[5, 11, 12]))
    assert (plan.first, plan.last, list(plan.wanted)) == (3, 12, [3, 4, 6, 7, 8, 9, 10])
    assert list(plan.gaps) == [5, 11, 12]


def test_objects_count_for_how_long_it_takes_most_of_all_those_that_have_to_be_merged_first():
    one_after_the_other = planned(past(objects=[stored(one) for one in range(1, 1001)], last=1000))
    together = planned(past(objects=[stored(one, 1000 + one) for one in range(1, 1001)], last=2000))
    assert planned(past()).seconds < 0.01 < one_after_the_other.seconds < 2
    assert together.seconds > 5 * one_after_the_other.seconds


def test_a_part_or_all():
    known = past(first=3, deleted=[5])
    assert list(planned(known, to_sequence=6).wanted) == [3, 4, 6]
    assert list(planned(known, start=1, to_sequence=4).wanted) == [1, 2, 3, 4]
    assert list(planned(known, everything=True).wanted) == list(range(1, 11))
    assert bounds(known, Window(to_sequence=99)) == (3, 10)


def test_an_empty_stream_begins_after_its_last_sequence_and_one_that_was_never_used_at_0():
    plan = planned(past(first=11, last=10, objects=[]))
    assert plan.state() | {"bytes": 0} == {"messages": 0, "bytes": 0, "first_seq": 11, "last_seq": 10}
    plan = planned(past(first=0, last=0, objects=[]))
    assert (plan.first, plan.last) == (0, 0)
    assert plan.obstacles == ()


def test_what_is_not_in_the_archive_is_named_by_its_reason():
    known = past(last=12, deleted=[11], removed=[2], objects=[stored(1), stored(3, 10)])
    said = "; ".join(planned(known).not_kept)
    assert "1 message (2) was removed by the archive's retention" in said
    assert "1 sequence (12) is not in the archive" in said
    old = past(objects=[stored(1, 10, latest=NOW - 100)], max_age=60 * 10**9)
    assert "at least 10 messages are older than the stream's max_age of 60 s" in "; ".join(planned(old).not_kept)


def test_a_stream_of_which_no_message_is_whole_is_not_restored_as_an_empty_one():
    values = msgspec.structs.replace(stored(1, 10), path="blocks/v", format="csv-value.zst")
    known = past(objects=[values])
    sentence = "nothing can be restored: 10 messages (1–10) are only in blocks/v, which does not keep messages whole"
    for options in ({}, {"to_sequence": 4}, {"replay": True}):
        plan = planned(known, **options)
        assert plan.messages == 0
        assert plan.obstacles[0].startswith("nothing can be restored: "), plan.obstacles
        assert len(plan.obstacles) == 1
    assert planned(known).obstacles == (sentence,)
    assert planned(past(objects=[values, stored(1, 5)])).obstacles == ()


def test_consumers_go_on_at_their_floor_within_what_is_restored():
    consumers = {
        "d": consumer(5, durable_name="d", ack_policy="explicit", num_replicas=3),
        "n": consumer(5, durable_name="n", ack_policy="none"),
        "e": consumer(ephemeral=True),
        "p": consumer(durable_name="p", deliver_subject="push"),
    }
    known = past(consumers=consumers)
    plan = planned(known, replicas=1)
    assert [one["config"]["name"] for one in plan.consumers] == ["d", "n", "p"]
    assert [one["state"]["ack_floor"]["stream_seq"] for one in plan.consumers] == [5, 7, 3]
    assert plan.consumers[0]["state"]["delivered"] == {"consumer_seq": 5, "stream_seq": 5}
    assert plan.consumers[0]["config"]["num_replicas"] == 1
    assert "consumer e is ephemeral" in "; ".join(plan.not_kept)
    assert planned(known, to_sequence=2).consumers[0]["state"]["ack_floor"]["stream_seq"] == 2
    copy = planned(known, name="COPY")
    assert [one["config"]["name"] for one in copy.consumers] == ["d", "n"]
    assert "consumer p is left out" in "; ".join(copy.not_kept)
    assert planned(known, consumers=False).consumers == planned(known, detached=True).consumers == []


def test_a_position_that_contradicts_itself_is_not_restored_and_the_plan_says_what_is_used_instead():
    floor, delivered = Position(2721, 0), Position(17600, 9)
    done = msgspec.structs.replace(consumer(durable_name="done"), ack_floor=floor, delivered=delivered, unacked=0)
    busy = msgspec.structs.replace(done, unacked=2)
    plan = planned(past(consumers={"busy": busy, "done": done, "right": consumer(5, durable_name="right")}))
    places = [one["state"]["ack_floor"] for one in plan.consumers]
    assert places == [
        {"consumer_seq": 0, "stream_seq": 0},
        {"consumer_seq": 17600, "stream_seq": 9},
        {"consumer_seq": 5, "stream_seq": 5},
    ]
    said = "; ".join(plan.not_kept)
    assert (
        "consumer done can't be at the position that the server reported (it has acknowledged everything up to "
        "sequence 0"
        " (delivery 2,721)): it continues after sequence 9, since it has acknowledged every delivered message" in said
    )
    assert "it continues after sequence 0: messages that it has acknowledged are delivered again" in said
    assert "consumer right" not in said


def of_backup(pending, floor=(3, 2), delivered=(20, 17), redelivered=None):
    """Return a consumer of a backup: deliveries are three ahead of sequences."""
    return Consumer(
        created="",
        ephemeral=False,
        config={"durable_name": "w", "metadata": {"_nats.req.level": "1", "_nats.ver": "2.15.1"}},
        delivered=Position(*delivered),
        ack_floor=Position(*floor),
        unacked=len(pending),
        pending={one: Unacked(one + 3, 5) for one in pending},
        redelivered=redelivered or {},
    )


def test_the_acknowledgements_of_a_backup_are_restored_one_by_one():
    held = of_backup([4, 8, 9], redelivered={4: 1, 6: 2})
    known = past(first=1, last=17, deleted=[9], objects=[stored(1, 17)], consumers={"w": held})
    state = planned(known).consumers[0]["state"]
    assert state == {
        "delivered": {"consumer_seq": 20, "stream_seq": 17},
        "ack_floor": {"consumer_seq": 3, "stream_seq": 2},
        "pending": {"4": {"Sequence": 7, "Timestamp": 5}, "8": {"Sequence": 11, "Timestamp": 5}},
        "redelivered": {"4": 1},
    }
    assert "consumers continue where they were when the backup was made" in "; ".join(planned(known).not_kept)
    part = planned(known, to_sequence=5).consumers[0]["state"]
    assert (part["delivered"]["stream_seq"], part["pending"].keys()) == (5, {"4"})
    none = planned(known, subjects=("s.a",), to_sequence=3).consumers[0]["state"]
    assert none == {
        "delivered": {"consumer_seq": 20, "stream_seq": 3},
        "ack_floor": {"consumer_seq": 20, "stream_seq": 3},
    }
    assert planned(known).consumers[0]["config"]["metadata"] == {"_nats.req.level": "1"}


@pytest.mark.parametrize(
    ("one", "floor"),
    [
        (of_backup([2, 4]), 1),  # acknowledged, and not
        (of_backup([4, 18]), 2),  # of what was never delivered
        (of_backup([4], delivered=(5, 17)), 2),
        (of_backup([4], floor=(9, 0)), 3),
        (of_backup([4], delivered=(20, 2**63)), 0),
    ],
)
def test_what_a_server_would_refuse_of_a_consumer_is_not_uploaded_and_nothing_unacknowledged_is_skipped(one, floor):
    known = past(first=1, last=18, objects=[stored(1, 18)], consumers={"w": one})
    state = planned(known).consumers[0]["state"]
    assert state["ack_floor"]["stream_seq"] == floor < min(one.pending)
    assert state.get("pending", {}).keys() <= {str(held) for held in one.pending if floor < held <= 17}
    assert state["delivered"] == state["ack_floor"] or "pending" in state


def test_where_single_acknowledgements_can_t_be_restored_the_plan_says_how_many_messages_come_again():
    held = past(first=1, last=17, objects=[stored(1, 17)], consumers={"w": of_backup([4, 8])})
    older = planned(held, version=(2, 11, 0))
    assert older.consumers[0]["state"]["delivered"] == {"consumer_seq": 3, "stream_seq": 2}
    assert older.consumers[0]["config"]["metadata"] == {}  # such a server gives it its level
    sentence = "consumer w gets up to 15 messages again that it has acknowledged, after sequence 2"
    assert sentence in older.not_kept
    live = msgspec.structs.replace(of_backup([]), pending=None, unacked=2)
    assert sentence in planned(past(last=17, objects=[stored(1, 17)], consumers={"w": live})).not_kept
    assert not [one for one in planned(held).not_kept if "again that it has" in one]


@pytest.mark.parametrize(
    ("known", "streams", "options", "obstacle"),
    [
        (past(), {"S": {"subjects": []}}, {}, "an existing stream is never touched"),
        (past(), {"S": {"metadata": {MARK: "x"}}}, {}, "restore with --again"),
        (past(), {"T": {"subjects": ["s.*"]}}, {}, r"subject s.> overlaps s.\* of stream T"),
        (past(retention="interest"), {}, {}, "without its consumers it would keep none"),
        (past(), {}, {"start": 11}, "no message of S matches"),
        (past(), {}, {"version": (2, 9, 25)}, "2.10 or later is needed"),
        (past(), {}, {"account": {"limits": {"max_streams": 2}, "streams": 2}}, "may have 2 streams"),
        (past(), {}, {"account": {"limits": {"max_storage": 900}, "storage": 1}}, "may store 900 bytes"),
    ],
)
def test_what_stands_in_the_way_is_found_before_anything_is_written(known, streams, options, obstacle):
    plan = planned(known, streams, **options)
    assert len(plan.obstacles) == 1
    assert re.search(obstacle, plan.obstacles[0])


def test_a_detached_copy_an_unfinished_one_and_a_replay_stand_in_nobodys_way():
    live = {"S": {"subjects": ["s.>"]}}
    copy = planned(past(sources=[{"name": "X"}], republish={"src": ">"}), live, name="COPY", detached=True)
    assert copy.obstacles == ()
    assert (copy.config["subjects"], "sources" in copy.config, "republish" in copy.config) == (["COPY"], False, False)
    assert planned(past(), {"S": {"metadata": {MARK: "x"}}}, again=True).obstacles == ()
    assert planned(past(), live, replay=True).obstacles == ()


def test_while_it_is_made_a_stream_has_no_limits_and_no_subject_that_somebody_knows():
    config = CONFIG | {"max_age": 1, "max_msgs": 5, "sealed": True, "discard": "new", "sources": [{"name": "X"}]}
    config |= {"metadata": {"_nats.ver": "2.15.1", "_nats.level": "5", "_nats.req.level": "1", "who": "we"}}
    made = incomplete_config(config, "token")
    assert {name: made[name] for name in ("max_age", "max_msgs", "sealed", "discard")} == {
        name: LIFTED[name] for name in ("max_age", "max_msgs", "sealed", "discard")
    }
    assert made["subjects"] == ["_capture.restore.token"]
    assert made["metadata"] == {"who": "we", "_nats.req.level": "1", MARK: "token"}
    assert "sources" not in made
    assert "subjects" not in incomplete_config({"name": "M", "mirror": {"name": "S"}}, "token")


def test_an_older_server_is_not_asked_for_what_it_does_not_know():
    config = CONFIG | {"allow_msg_ttl": True, "allow_atomic": False, "allow_batched": True}
    known, unknown = split_settings(config, (2, 11, 5))
    assert (set(config) - set(known), unknown) == ({"allow_atomic", "allow_batched"}, ["allow_batched"])
    assert split_settings(config, (2, 14, 0)) == (config, [])


def test_the_configuration_that_held_at_a_time():
    several = [Configuration(since=one, first_seq=1, last_seq=1, config={"n": one}) for one in (10.0, 20.0)]
    assert [in_force(several, at and int(at * 1e9)).config["n"] for at in (5.0, 10.0, 19.9, 20.0, None)] == [
        10,
        10,
        10,
        20,
        20,
    ]


async def test_a_recording_of_before_that_was_changed_is_refused():
    store = MemoryStore("a")
    await store.put("_history/x.json", b"{}")
    newest = Recording(created=100.0, earlier=Earlier("_history/x.json", "0" * 64))
    with pytest.raises(ManifestError, match=r"_history/x.json was changed"):
        await recording_at(store, newest, 50.0)
    assert await recording_at(store, newest, 100.0) is newest
    first = msgspec.structs.replace(newest, earlier=None)
    assert await recording_at(store, first, 50.0) is None
    assert await recordings_around(store, first, 50.0) == (None, first)
    assert await recordings_around(store, first, 100.0) == (first, None)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "nothing was recorded by that time, the first recording is of 2026-11-21 03:00:00 UTC"),
        (
            41,
            "no recording by that time is kept (only the last 20, and the last of each hour), the next one is of"
            " 2026-11-21 03:00:00 UTC",
        ),
    ],
)
def test_where_nothing_is_recorded_the_next_recording_and_the_configuration_are_named(number, said):
    known = replace(past(), record=None, later=Recording(number=number, created=NOW), configured=NOW - 60)
    unknown = "consumers, and what was deleted by then, are not known; the configuration is that of"
    assert f"{said}: {unknown} 2026-11-21 02:59:00 UTC" in planned(known).not_kept


def test_the_pace_and_what_the_command_line_reads():
    assert Pace(speed=2.0).due(0, 10**10) == 5.0
    assert Pace().due(0, 10**10) == 0.0
    assert [_speed(text) for text in ("original", "max", "2.5")] == [1.0, 0.0, 2.5]
    assert _start("7") == {"start": 7}
    before = time.time_ns()
    assert before - 3600 * 10**9 <= _at("1h") <= time.time_ns() - 3600 * 10**9
    assert _start("2026-11-21T06:00:00.000000001Z") == {"start_ns": _at("2026-11-21T06:00:00Z") + 1}
    for read, text in (
        (_speed, "0"),
        (_speed, "fast"),
        (_speed, "-1"),
        (_at, "noon"),
        (_at, "2026-11-21"),
        (_at, "2026-11-21T06:00:00.1234567891Z"),
        (_start, "0"),
    ):
        with pytest.raises(typer.BadParameter):
            read(text)

"""Where every sequence is: the arithmetic of "nothing is missing"."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.archive.sequences import Sequences
from capture.verification.check import Check
from capture.verification.recorded_stream import has_limits
from capture.verification.verdict import SAID, TOLD, Holdings, StreamReport, compare

some = st.sets(st.integers(1, 60))


def of(*sequences):
    return Sequences.from_iterable(sequences)


def upto(first, last):
    return Sequences.from_range(first, last)


@given(st.integers(1, 40), st.integers(0, 50), some, some, some, some, some, some, some)
def test_every_sequence_is_in_exactly_one_class(
    first, last, deleted, stored, undecodable, removed, lost, unwanted, doubtful
):
    last = max(last, first - 1)
    held = Holdings(
        stored=of(*stored),
        undecodable=of(*(undecodable & stored)),
        removed=of(*(removed - stored)),
        lost=of(*(lost - stored - removed)),
    )
    view = StreamReport(
        first=first, last=last, deleted=of(*deleted), unwanted=of(*unwanted), doubtful=of(*doubtful), delivered=20
    )
    verdict = compare(held, view)
    classes = [
        verdict.stored, verdict.undecodable, verdict.deleted, verdict.expired, verdict.missing, verdict.removed,
        verdict.unwanted, verdict.unknown,
    ]  # fmt: skip
    everything = Sequences.union_of(classes)
    assert sum(map(len, classes)) == len(everything)
    assert set(everything) == set(range(1, last + 1)) | stored | removed | lost
    in_stream = set(range(first, last + 1)) - deleted - unwanted - doubtful - stored - removed
    assert set(verdict.missing) == in_stream | (lost - stored - removed)
    assert set(verdict.unseen) <= set(verdict.expired)
    assert all(one > 20 and one > max(stored, default=0) for one in verdict.unseen)
    assert verdict.ok == (not verdict.missing)


def test_a_complete_archive_is_ok_and_says_so():
    held = Holdings(stored=upto(3, 9), table=upto(3, 8), undecodable=of(5))
    verdict = compare(held, StreamReport(first=3, last=10, deleted=of(10)))
    assert verdict.ok
    assert verdict.sentence() == (
        "6 stored, 1 undecodable and kept raw, 1 deleted in the stream, 2 expired in the stream, "
        "1 of them not compacted yet; nothing is missing"
    )


def test_what_is_missing_is_named():
    verdict = compare(Holdings(stored=of(1, 2, 3, 7)), StreamReport(first=1, last=10))
    assert not verdict.ok
    assert verdict.sentence().endswith("; 6 MISSING (4–6, 8–10)")
    assert verdict.as_dict()["missing_runs"] == [[4, 6], [8, 10]]
    assert verdict.as_dict()["ok"] is False


def test_of_thousands_of_gaps_programs_are_told_a_bounded_number():
    verdict = compare(Holdings(stored=of(*range(2, 4 * TOLD, 2))), StreamReport(first=1, last=4 * TOLD))
    told = verdict.as_dict()
    assert len(told["missing_runs"]) == TOLD
    assert told["more_runs"] is True
    assert told["missing"] == 2 * TOLD + 1


def test_of_thousands_of_problems_people_are_told_a_few_and_their_number():
    problems = tuple(f"block {number} is missing" for number in range(2 * TOLD))
    verdict = compare(Holdings(problems=problems), StreamReport(first=1, last=0))
    assert verdict.sentence().endswith(f"block {SAID - 1} is missing; and {2 * TOLD - SAID:,} more like these")
    assert (len(verdict.as_dict()["problems"]), verdict.as_dict()["more_problems"]) == (TOLD, TOLD)


def test_rows_that_the_table_holds_twice_are_not_ok():
    verdict = compare(Holdings(stored=of(1), table=of(1), duplicates=2), StreamReport(first=1, last=1))
    assert not verdict.ok
    assert "2 twice in the table" in verdict.sentence()


def test_an_empty_stream_and_an_empty_archive_agree():
    verdict = compare(Holdings(), StreamReport(first=1, last=0))
    assert verdict.ok
    assert verdict.sentence() == "nothing stored; nothing is missing"


def test_a_purged_stream_is_expired_where_the_archive_is_not():
    verdict = compare(Holdings(stored=upto(1, 90)), StreamReport(first=101, last=100))
    assert verdict.ok
    assert list(verdict.expired.runs()) == [(91, 100)]
    assert not verdict.unseen


def test_what_went_before_capture_was_given_it_is_told_apart_from_what_went_at_some_time():
    held = Holdings(stored=of(*range(1, 11), 14))
    verdict = compare(held, StreamReport(first=31, last=30, delivered=20))
    assert list(verdict.expired.runs()) == [(11, 13), (15, 30)]
    assert list(verdict.unseen.runs()) == [(21, 30)]
    assert "19 expired in the stream, 10 of these certainly before they were delivered to capture" in verdict.sentence()


def test_what_an_earlier_consumer_had_stored_is_no_proof_that_it_was_not_given_more():
    verdict = compare(Holdings(stored=of(1, 25)), StreamReport(first=31, last=30, delivered=0))
    assert list(verdict.unseen.runs()) == [(26, 30)]


def test_what_is_deleted_by_its_ack_is_no_proof_of_anything():
    view = StreamReport(first=5, last=8, deleted=of(6), delivered=8, acks_delete=True)
    verdict = compare(Holdings(stored=of(1, 2, 5, 7, 8)), view)
    assert list(verdict.unproven) == [3, 4, 6]
    assert "3 of these without proof that capture did not lose them" in verdict.sentence()
    assert not compare(Holdings(), replace(view, acks_delete=False)).unproven


def test_what_no_limit_of_the_stream_explains_did_not_expire_and_is_not_well():
    view = StreamReport(first=9, last=8, deleted=of(6), delivered=8, acks_delete=True, limited=False, accountable=3)
    verdict = compare(Holdings(stored=of(4, 5, 7, 8)), view)
    assert (list(verdict.unproven), list(verdict.unexplained)) == ([1, 2, 3, 6], [3, 6])
    assert verdict.sentence() == (
        "4 stored, 1 deleted in the stream, 3 removed from the stream, 2 of these without proof that capture did not"
        " lose them: this stream deletes acked messages, 4 of them not compacted yet; 2 messages were removed from the"
        " stream without being captured (3, 6), and no limit of the stream explains it: acknowledged by another client,"
        " purged, or deleted (on purpose: --accept)"
    )
    assert Check(verdict=verdict, held=Holdings(), stream="S", store="").status == 1
    for other in (replace(view, accountable=None), replace(view, acks_delete=False)):
        assert not compare(Holdings(stored=of(4, 5, 7, 8)), other).unexplained
    kept = compare(Holdings(stored=of(4)), replace(view, acks_delete=False)).sentence()
    assert "purged from the stream" in kept


@pytest.mark.parametrize(
    ("config", "limited"),
    [
        ({"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "discard": "old"}, False),
        ({"max_msgs": 5, "discard": "new"}, False),
        ({"max_msgs": 5, "discard": "old"}, True),
        ({"max_msgs_per_subject": 1}, True),
        ({"max_msgs_per_subject": 1, "discard": "new"}, True),  # nats-server replaces the oldest of the subject
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, False),
        ({"max_bytes": 10, "discard": "new"}, False),
        ({"max_age": 10**9, "discard": "new"}, True),
        ({"allow_msg_ttl": True}, True),
    ],
)
def test_which_streams_remove_messages_by_themselves(config, limited):
    assert has_limits([{}, config]) is limited


def test_what_a_damaged_object_held_is_missing_even_where_the_stream_has_dropped_it():
    held = Holdings(stored=of(5), lost=of(1, 2, 9), problems=("blocks/x is missing",))
    verdict = compare(held, StreamReport(first=5, last=6, deleted=of(2, 6)))
    assert list(verdict.missing) == [1, 2, 9]
    assert not compare(held, None).ok
    assert list(compare(held, None).missing) == [1, 2, 9]


def test_what_the_archives_own_retention_has_removed_is_not_missing():
    verdict = compare(Holdings(stored=of(5, 6), removed=upto(1, 4)), StreamReport(first=1, last=6))
    assert verdict.ok
    assert "4 removed by the archive's retention; nothing is missing" in verdict.sentence().replace(
        ", 2 of them not compacted yet", ""
    )


def test_other_subjects_are_not_missing_and_where_nobody_can_tell_that_is_said():
    held = Holdings(stored=of(1, 5))
    verdict = compare(held, StreamReport(first=1, last=5, unwanted=of(2, 5), doubtful=of(3, 4)))
    assert verdict.ok
    assert (list(verdict.unwanted), list(verdict.unknown)) == ([2], [3, 4])
    assert "1 outside the capture scope" in verdict.sentence()
    assert "2 others unknown (3–4)" in verdict.sentence()


def test_what_is_above_the_streams_last_is_told_apart():
    verdict = compare(Holdings(stored=of(1, 2, 3)), StreamReport(first=1, last=2))
    assert verdict.ok
    assert list(verdict.beyond) == [3]


def test_without_a_stream_nothing_can_be_missing_only_damaged():
    verdict = compare(Holdings(stored=of(1, 5)), None)
    assert verdict.ok
    assert verdict.sentence() == (
        "2 stored, 2 of them not compacted yet, 3 others unknown (2–4); "
        "every object is sound; the stream was not compared"
    )
    assert not compare(Holdings(stored=of(1, 5), problems=("blocks/x is missing",)), None).ok

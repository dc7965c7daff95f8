import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.archive.sequences import Sequences
from capture.verification import purge
from capture.verification.purge import Stock, _floor, _floors_of_copy
from capture.verification.verdict import Holdings

sets = st.sets(st.integers(1, 40))


def of(*sequences):
    return Sequences.from_iterable(sequences)


def upto(first, last):
    return Sequences.from_range(first, last)


def plan_purge(stock, proven, keep=0):
    return purge.plan_purge(stock, Holdings(proven=proven), keep)


@given(
    present=sets,
    foreign=sets,
    proven=sets | st.sets(st.integers(1, 40), max_size=2).map(lambda lacking: {*range(1, 41)} - lacking),
    floors=st.dictionaries(st.text("abc", min_size=1), st.integers(0, 45), max_size=3),
    keep=st.integers(0, 45),
    young=st.none() | st.integers(1, 45),
)
def test_nothing_goes_that_is_not_proven_or_that_somebody_still_needs(present, foreign, proven, floors, keep, young):
    ours = present - foreign
    stock = Stock(present=of(*present), ours=of(*ours), floors=floors, young=young)
    plan = plan_purge(stock, of(*proven), keep)
    gone = {one for one in ours if one < plan.before}
    assert plan.messages == len(gone)
    assert gone <= proven
    assert all(one <= floor for one in gone for floor in floors.values())
    assert young is None or all(one < young for one in gone)
    assert not gone & set(sorted(present)[-keep:] if keep else [])
    for one in sorted(ours - gone)[:1]:  # and it goes as far as it can
        newest = sorted(present)[-keep:] if keep else []
        too_young = young is not None and one >= young
        assert one not in proven or any(one > floor for floor in floors.values()) or one in newest or too_young


def test_the_reason_names_what_ends_it():
    stock = Stock(present=upto(5, 100), ours=upto(5, 100), floors={"consumer billing": 70}, young=90)
    for proven, keep, before, reason in (
        (upto(5, 100), 0, 71, "consumer billing still needs messages after sequence 70"),
        (upto(5, 60), 0, 61, "sequence 61 is not proven to be stored"),
        (upto(5, 100), 50, 51, "the newest 50 messages are kept"),
        (of(), 0, 5, "sequence 5 is not proven to be stored"),
    ):
        plan = plan_purge(stock, proven, keep)
        assert (plan.before, plan.reason) == (before, reason)
    held = Holdings(stored=upto(5, 100), incomplete={"csv-value": of(9), "own-msgpack": upto(5, 6)})
    assert purge.plan_purge(stock, held).reason == (
        "sequence 5 is only in a block that does not keep messages whole (own-msgpack)"
    )
    alone = Stock(present=upto(5, 100), ours=upto(5, 100), young=90)
    plan = plan_purge(alone, upto(1, 100))
    assert (plan.before, plan.reason) == (90, "messages from sequence 90 on are too young")
    assert plan_purge(Stock(present=of(), ours=of()), of()).messages == 0


def test_a_deleted_sequence_does_not_end_it_and_is_not_counted_among_the_newest():
    stock = Stock(present=of(1, 2, 5, 9), ours=of(1, 2, 5, 9))
    assert plan_purge(stock, of(1, 2, 5, 9)).before == 10
    plan = plan_purge(stock, of(1, 2, 5, 9), keep=2)
    assert (plan.before, plan.messages) == (5, 2)


def test_a_margin_of_more_than_there_is_keeps_all():
    stock = Stock(present=of(3, 4), ours=of(3, 4))
    assert plan_purge(stock, of(3, 4), keep=5).messages == 0


def test_other_subjects_neither_go_nor_end_it():
    stock = Stock(present=upto(1, 10), ours=of(2, 4, 6))
    plan = plan_purge(stock, of(2, 4, 6))
    assert (plan.before, plan.messages) == (11, 3)
    assert plan_purge(stock, of(2, 6)).before == 4


def consumer(floor, pending=0, unacked=0, **config):
    return {
        "config": config, "num_pending": pending, "num_ack_pending": unacked, "ack_floor": {"stream_seq": floor},
    }  # fmt: skip


def test_a_consumer_with_a_filter_that_waits_for_nothing_holds_back_nothing():
    assert _floor(consumer(7), last=50) == 7
    assert _floor(consumer(7, filter_subject="a.*"), last=50) == 50
    assert _floor(consumer(7, pending=1, filter_subject="a.*"), last=50) == 7
    assert _floor(consumer(7, unacked=1, filter_subjects=["a", "b"]), last=50) == 7


def other(lag, active=1, **state):
    return {"name": "S", "lag": lag, "active": active, **state}


@pytest.mark.parametrize(
    ("copy", "floor"),
    [(other(0), 50), (other(3), 40), (other(0, active=-1), 40), (other(0, error={"code": 1}), 40), (None, 40)],
)
def test_a_mirror_holds_back_what_it_has_not_got(copy, floor):
    info = {"config": {"name": "M", "mirror": {"name": "S"}}, "state": {"last_seq": 40}, "mirror": copy}
    assert _floors_of_copy("S", info, last=50) == {"mirror M": floor}
    assert _floors_of_copy("T", info, last=50) == {}


@pytest.mark.parametrize(("copies", "floor"), [([other(0)], 50), ([other(1)], 0), ([other(0), other(2)], 0), ([], 0)])
def test_a_stream_that_has_it_as_a_source_holds_back_all_until_it_has_all(copies, floor):
    info = {"config": {"name": "A", "sources": [{"name": "S"}]}, "state": {"last_seq": 9000}, "sources": copies}
    assert _floors_of_copy("S", info, last=50) == {"stream A, of which it is a source,": floor}


def test_a_stream_of_another_domain_that_is_called_the_same_is_another_one():
    info = {"config": {"name": "M", "mirror": {"name": "S", "external": {"api": "x"}}}, "state": {}, "mirror": None}
    assert _floors_of_copy("S", info, last=50) == {}

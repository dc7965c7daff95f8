"""Which messages that no node has stored the sweep stores now, and where to look for them: decided without a server."""

import asyncio
import random

import pytest

from capture.coverage import Coverage
from capture.filtered import PROBES, narrowed
from capture.heal import Unstored
from capture.progress import Missing, Progress
from capture.sequences import Sequences
from capture.summary import Backlog

WAIT = 30.0
NOBODY = float("inf")  # since when nodes hold messages


def some(*sequences):
    return Sequences.from_iterable(sequences)


def test_what_is_not_stored_is_due_when_it_was_seen_for_so_long():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    assert not unstored.due(129.9, WAIT, NOBODY)
    assert unstored.due(130.0, WAIT, NOBODY) == some(1, 2)


def test_each_message_waits_for_itself():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    unstored.update(some(1, 2, 7), 120.0)
    assert unstored.due(130.0, WAIT, NOBODY) == some(1, 2)
    assert unstored.due(150.0, WAIT, NOBODY) == some(1, 2, 7)
    assert unstored.all == some(1, 2, 7)


def test_what_a_node_has_stored_meanwhile_is_forgotten_and_waits_anew():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    unstored.update(some(2), 110.0)
    unstored.update(some(1, 2), 120.0)
    assert unstored.due(130.0, WAIT, NOBODY) == some(2)


@pytest.mark.parametrize(("held_since", "due"), [(99.0, ()), (100.0, ()), (100.1, (1, 2)), (float("-inf"), ())])
def test_nothing_is_due_while_a_node_holds_messages_that_it_may_have_been_given_before(held_since, due):
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    assert unstored.due(500.0, WAIT, held_since) == some(*due)


class Stream:
    """Counts as a server does, and how often it was asked."""

    def __init__(self, captured):
        self.captured, self.asked = captured, 0

    async def count(self, sequence):
        self.asked += 1
        return sum(one >= sequence for one in self.captured)


def found(stream, doubted, known):
    return asyncio.run(narrowed(Sequences.from_iterable(doubted), Sequences.from_iterable(known), stream.count))


def test_where_all_captured_subjects_are_stored_two_questions_are_enough():
    stream = Stream(range(0, 100_000, 2))
    assert not found(stream, range(1, 100_000, 2), stream.captured)
    assert stream.asked == 2


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_stored_of_the_captured_subjects_is_among_what_is_found(seed):
    dice = random.Random(seed)
    captured = {one for one in range(1, 5000) if dice.random() < 0.5}
    lost = set(dice.sample(sorted(captured), dice.randint(1, 5)))
    stream = Stream(captured)
    suspected = found(stream, set(range(1, 5000)) - (captured - lost), captured - lost)
    assert lost <= {*suspected}
    assert len(suspected) <= 64 * len(lost)


def test_a_search_ends_after_so_many_questions_and_the_next_one_goes_on():
    captured = set(range(1, 1_000_001))
    lost = set(range(1, 1_000_001, 1000))
    stored = Sequences.from_range(1, 1_000_000) - Sequences.from_iterable(lost)
    asked = 0

    async def count(sequence):
        nonlocal asked
        asked += 1
        return len(captured) + 1 - sequence

    first = asyncio.run(narrowed(Sequences.from_iterable(lost), stored, count))
    assert asked <= PROBES + 2
    assert first
    second = asyncio.run(narrowed(Sequences.from_iterable(lost) - first, stored | first, count))
    assert second
    assert second.isdisjoint(first)


def test_what_a_sweep_has_just_stored_is_no_gap():
    progress = Progress("S", first=1, last=5, now=0.0, backlog=Backlog(pending=0, unacked=0, acked=5), asked=[])
    state = progress.state(Coverage(held=some(1, 2)), Missing(stored=some(3, 4), healed=2))
    assert (state.gaps, state.gaps_are) == (1, "5")

"""The election's state machine in a simulated world: the properties P1 to P6, and mutants that must not survive."""

import os
from dataclasses import replace

import pytest
from election_stream import LEASE, Weather
from election_world import Node, World
from hypothesis import given, settings
from hypothesis import strategies as st

from natty.elections.actions import Phase, Write
from natty.elections.machine import Candidate
from natty.elections.options import Rules, silence
from natty.elections.record import Sight

SEEDS = int(os.environ.get("ELECTION_SEEDS", "1000"))
CHUNK = SEEDS // 10
QUICK = 3  # chunks; the others are long tests
EMPTIED = Weather(purge=1.5, crash=1.0, cut=1.0, deaf=0.5)
WEATHERS = {
    "rough": Weather(),
    "lossy and slow": Weather(slow=0.5, loss=0.2),
    "keys deleted and purged": Weather(delete=0.3, purge=0.2),
    "buckets emptied while processes start": Weather(purge=0.6, crash=1.0),
    "buckets emptied while processes hear nothing": EMPTIED,
    "frozen processes": Weather(pause=1.5),
    "cut links": Weather(cut=1.5),
    "forged news": Weather(forge=8.0),
    "forged news while processes die": Weather(forge=8.0, crash=0.8, deaf=0.3, resign=0.0),
}


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.long] if chunk >= QUICK else []) for chunk in range(10)]
)
def test_no_schedule_breaks_a_property(chunk):
    terms = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        world = World(seed).run()
        assert world.wrongs == [], f"seed {seed}"
        terms += len(world.terms)
    assert terms > CHUNK  # it was about something


@pytest.mark.parametrize("weather", WEATHERS)
def test_no_weather_breaks_a_property(weather):
    for seed in range(CHUNK // 2):
        assert World(seed, WEATHERS[weather]).run().wrongs == [], f"seed {seed}"


def test_a_stream_that_loses_its_tail_is_noticed_and_elections_go_on():
    alarms = 0
    for seed in range(CHUNK):
        world = World(seed, Weather(roll_back=0.4, drift=0.0)).run()
        assert world.wrongs == [], f"seed {seed}"
        alarms += world.alarms
    assert alarms > 0


@pytest.mark.long
def test_clocks_beyond_the_assumption_break_exclusion_and_never_the_fence():
    """Two theorems made visible: P2 stands on the clocks' rates, P1 on nothing but the stream's order."""
    broken = set()
    for seed in range(300):
        broken |= {wrong[:2] for wrong in World(seed, Weather(drift=0.3, pause=1.0, cut=1.0)).run().wrongs}
    assert "P2" in broken
    assert not broken & {"P1", "P3"}


FAULTS = ("pause", "cut", "crash", "stall", "delete", "purge", "outage", "resign")


@settings(max_examples=150, derandomize="ELECTION_SEEDS" not in os.environ)
@given(
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.floats(0, 2 * LEASE), st.sampled_from(FAULTS), st.integers(0, 2), st.floats(0, 3 * LEASE)),
        max_size=12,
    ),
)
def test_no_sequence_of_faults_breaks_a_property(seed, schedule):
    assert World(seed).play(schedule).wrongs == []


@pytest.mark.parametrize(("lease", "seconds"), [(0.3, 1), (0.5, 2), (2.0, 6), (15.0, 45)])
def test_the_servers_time_to_live_is_three_leases_in_whole_seconds_and_never_less(lease, seconds):
    assert Rules(lease=lease).ttl == seconds


class BlindPut(Candidate):
    """Renews and takes over whatever stands there, as the ancestor does."""

    def _condition(self, expected):
        return None


class DeadlineFromAck(Candidate):
    def _deadline_from(self, sent, answered):
        return answered + self.rules.usable


class NoReadBack(Candidate):
    """Takes every refusal for a loss, its own landed write among them."""

    def refused(self, now, nonce):
        if self._round is not None and self._round.record.nonce == nonce:
            return self._learn(now, Sight(self._round.expected + 1, "deleted"), decisive=True)
        return super().refused(now, nonce)


class BusyIsLoss(Candidate):
    def busy(self, now, nonce):
        if self._round is not None and self._round.record.nonce == nonce:
            return self._learn(now, Sight(self._round.expected + 1, "deleted"), decisive=True)
        return super().busy(now, nonce)


class ReleaseBeforeJoin(Candidate):
    def _stop(self, now, reason):
        return super()._stop(now, reason) + self.joined(now)


class DeleteIsRelease(Candidate):
    def _patience(self, sight):
        return 0.0 if sight.kind == "deleted" else super()._patience(sight)


class AbsentIsFree(Candidate):
    """Takes an empty key for one that was never led."""

    def _take_over(self, now):
        self.phase = Phase.ACQUIRING
        return self._begin(now, "held", self._known)


class WaitsWithoutMarking(AbsentIsFree):
    """Waits for a lease where nothing is there, then writes on condition that still nothing is there."""

    def _patience(self, sight):
        return silence(self.rules.lease) if sight.kind == "absent" else super()._patience(sight)


class NoTTL(Candidate):
    def _ttl(self, record):
        return None


class TokenWithoutCondition(Candidate):
    def _fence(self, now):
        return [
            replace(a, expected=None) if isinstance(a, Write) and a.key == "epoch" else a for a in super()._fence(now)
        ]


class BelievesHints(Candidate):
    """Takes what was republished for what was stored."""

    def saw(self, now, hint):
        return self._expire(now) + self._learn(now, hint, decisive=False)


class PutsUpWithSilence(Candidate):
    """Acts as soon as a lease has passed, with nothing to spare for clocks that differ."""

    def _patience(self, sight):
        return sight.lease.L * 0.9 if sight.kind == "held" else super()._patience(sight)


class ToldItMayNot(Candidate):
    """Is told that it may not write where no answer came: the write may have landed all the same."""

    def doubt(self, now, nonce):
        ours = self.phase is Phase.ACQUIRING and self._round is not None and self._round.record.nonce == nonce
        return self.forbidden(now, nonce) if ours else super().doubt(now, nonce)


MUTANTS = {
    BlindPut: "P",
    DeadlineFromAck: "P2",
    NoReadBack: "P7",
    BusyIsLoss: "P7",
    ReleaseBeforeJoin: "P4",
    DeleteIsRelease: "P2",
    AbsentIsFree: "P2",
    NoTTL: "GC",
    TokenWithoutCondition: "P3",
    PutsUpWithSilence: "P2",
}


STORM = Weather(pause=0.8, cut=1.2, crash=0.6, slow=0.3, delete=0.3, purge=0.3, deaf=0.6, stubborn=1.0)


def wrongs_of(weather=STORM, most=600, **world):
    for seed in range(most):
        if wrongs := World(seed, weather, **world).run().wrongs:
            yield from (wrong.split(" ")[0] for wrong in wrongs)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant):
    assert any(wrong.startswith(MUTANTS[mutant]) for wrong in wrongs_of(candidate=mutant))


def test_waiting_for_a_lease_is_not_enough_where_nothing_is_there():
    """Nothing has no revision: another candidate may have been elected meanwhile, and the bucket purged again."""
    assert "P2" in wrongs_of(EMPTIED, candidate=WaitsWithoutMarking)


def test_giving_up_a_write_that_lands_yet_breaks_no_property(monkeypatch):
    monkeypatch.setattr("natty.elections.machine.FORBIDDEN_PAUSE", LEASE / 2)
    assert list(wrongs_of(most=CHUNK, candidate=ToldItMayNot)) == []


@pytest.mark.parametrize("wrong", ["P5", "P7"])
def test_believing_what_was_republished_is_caught(wrong):
    weather = Weather(forge=8.0, pause=0.8, crash=0.5, stubborn=1.0)
    assert wrong in wrongs_of(weather, candidate=BelievesHints)


def test_a_client_that_sends_later_what_it_could_not_send_is_caught(monkeypatch):
    """nats-py's default: what is published while there is no connection is kept, and sent by the next one."""
    at_once = Node.send

    def buffered(self, *arguments):
        wait = self.cut_until - self.world.now
        if wait > 0:
            self.mine(wait * self.rate, at_once, self, *arguments)
        else:
            at_once(self, *arguments)

    monkeypatch.setattr(Node, "send", buffered)
    assert "P6" in wrongs_of(Weather(cut=1.5))

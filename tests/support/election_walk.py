"""A candidate that gets every event from the test, at times that the test chooses."""

import random

from natty.elections.actions import Read, Write
from natty.elections.machine import Candidate
from natty.elections.options import Rules
from natty.elections.record import Lease, Sight

HELD = {"id": "n", "inc": "i", "term": 7, "state": "held", "L": 2.0, "nonce": "i-1"}


def lease(**fields):
    return Lease(**HELD | fields)


def due(walk, now):
    """How long the candidate waits before it acts."""
    return walk.candidate._act_at - now


class Walk:
    """A candidate with a lease of two seconds, step by step at times that the test chooses."""

    def __init__(self):
        self.candidate = Candidate(Rules(lease=2.0), "me", "mine", random.Random(0), wall=1_700_000_000.0)
        self.reads = [one.number for one in self.candidate.campaign(0.0) if isinstance(one, Read)]
        self.writes = []

    def do(self, event, now, *arguments):
        """Pass an event, and return the actions to do."""
        actions = getattr(self.candidate, event)(now, *arguments)
        self.reads += [one.number for one in actions if isinstance(one, Read)]
        self.writes += [one for one in actions if isinstance(one, Write)]
        return actions

    def answer(self, now, sight):
        """Answer the last read."""
        return self.do("read", now, self.reads[-1], sight)

    def elect(self, at=10.0, revision=100):
        """Let the candidate win after another one has left its lease."""
        self.answer(at, Sight(revision, "released", lease(state="released")))
        self.do("tick", at + 0.1)
        self.do("stored", at + 0.1, self.writes[-1].record.nonce, revision + 1)
        return self.do("stored", at + 0.1, self.writes[-1].record.nonce, revision + 2)

"""A term whose holder never notices its end: it was paused when its lease ended, and only the server knows."""

import math

from natty import Election, Term
from natty.elections.candidacy import Candidacy
from natty.elections.tenure import Tenure


def believing(term: Term) -> Term:
    """Make a term believe that it never ends."""
    term._tenure = Tenure(term.token, term.number, 0.0)
    term._tenure.deadline = math.inf
    return term


async def elected_and_asleep(election: Election) -> Term:
    """Win an election, and never renew the lease."""
    await election.prepare()
    candidacy = await Candidacy(election).__aenter__()
    term = await candidacy.wait_until_elected()
    await candidacy._renewer.leave(candidacy._driver, candidacy._check)
    candidacy.running.__exit__()  # closing the client does not wait for it
    return believing(term)

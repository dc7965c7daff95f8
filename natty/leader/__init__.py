"""Leader election on a key-value bucket: fast by silence and republishing, safe by a token that the server checks."""

from natty.leader.election import Election
from natty.leader.observe import Leadership, ask_to_step_down, elections, leadership, observe
from natty.leader.options import BUCKET, ElectionOptions, default_node_name
from natty.leader.process import Program, run_guarded
from natty.leader.record import Lease, Subjects
from natty.leader.term import Term
from natty.leader.trail import TermNote, trail
from natty.units import clock

__all__ = [
    "BUCKET",
    "Election",
    "ElectionOptions",
    "Leadership",
    "Lease",
    "Program",
    "Subjects",
    "Term",
    "TermNote",
    "ask_to_step_down",
    "clock",
    "default_node_name",
    "elections",
    "leadership",
    "observe",
    "run_guarded",
    "trail",
]

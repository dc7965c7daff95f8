"""Leader election on a key-value bucket.

Candidates detect a dead leader by its silence and see changes as the server republishes them. A fencing token that the
server checks makes commits safe.
"""

from natty.config.units import clock
from natty.elections.audit_trail import TermNote, trail
from natty.elections.election import Election
from natty.elections.observer import Leadership, ask_to_step_down, elections, leadership, observe
from natty.elections.options import BUCKET, ElectionOptions, ElectionSettings, default_node_name, election_options
from natty.elections.process import Program, ProgramSettings, run_guarded
from natty.elections.record import Lease, Subjects
from natty.elections.term import Term
from natty.elections.work_loop import LastRun, last_success

__all__ = [
    "BUCKET",
    "Election",
    "ElectionOptions",
    "ElectionSettings",
    "LastRun",
    "Leadership",
    "Lease",
    "Program",
    "ProgramSettings",
    "Subjects",
    "Term",
    "TermNote",
    "ask_to_step_down",
    "clock",
    "default_node_name",
    "election_options",
    "elections",
    "last_success",
    "leadership",
    "observe",
    "run_guarded",
    "trail",
]

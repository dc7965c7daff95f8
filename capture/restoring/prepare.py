"""Reads what a restore needs of an archive's index, and plans it."""

from __future__ import annotations

import time
from dataclasses import replace

from capture.archive.encryption import Keys
from capture.archive.sequences import MAXIMUM
from capture.reading.shares import Selection
from capture.restoring.past import Past, list_held_then
from capture.restoring.pick import find_selected
from capture.restoring.plan import Options, Plan, Target, find_too_old, plan_restore
from capture.restoring.survey import take_survey
from capture.stores import Store


async def draw_plan(
    past: Past, options: Options, target: Target, store: Store, *, keys: Keys | None = None, now: float | None = None
) -> Plan:
    """Plan a restore from a past state, at time `now` (Unix seconds; None: now). Writes nothing.

    It reads the index as far as it names objects of the window, and these objects only if their records do not decide
    which messages are chosen. RestoreRefusedError if one of them is missing in the store; the errors of
    `Supply.shares`, and those of `reading.merge.merge_shares`.
    """
    window, wanted = options.window, list_held_then(past, options.window)
    until_ns = None if window.at_ns is None else window.at_ns + 1
    selection = Selection(since_ns=window.start_ns, until_ns=until_ns, subjects=window.subjects)
    first, last = (wanted.first, wanted.last) if wanted else (MAXIMUM, MAXIMUM)
    where = replace(selection.where, stream=past.stream, sequences=(first, last))
    too_old = find_too_old(past.config, time.time() if now is None else now)
    survey, supply = await take_survey(store, past.objects, where, too_old)
    if selection.columns:
        wanted = await find_selected(store, supply, selection, wanted, keys=keys)
    elif (
        missing := wanted - survey.held
    ):  # the sums beside the index are wrong, and the plan says that they are missing
        past, wanted = replace(past, held=past.held - missing), wanted - missing
    return plan_restore(past, survey, supply, wanted, options, target)

"""A problem of an archive: a sentence, and the entry of the runbook that says what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

MOST_SAID = 20  # sentences of each kind
SENTENCES = "sentences"  # the runbook's table of sentences


class Trouble(msgspec.Struct, frozen=True):
    """A sentence about a problem, and the anchor of its entry in docs/runbook.md."""

    text: str
    entry: str = SENTENCES


NEVER_SWEPT = Trouble("the archive was never swept", "capturenosweepleader")


def no_leader(is_attended: bool) -> Trouble:
    """Return the problem that nobody leads the sweep; `is_attended`: although a node is running."""
    text = "no node is running: start one with `capture run`, it adopts the stored blocks"
    if is_attended:
        text = "the sweep has no leader: stored blocks are not adopted"
    return Trouble(text, "capturenosweepleader")


def late_sweep(ago: float, every: float) -> Trouble:
    """Return the problem that the last sweep was `ago` seconds ago, and there should be one each `every` seconds."""
    return Trouble(f"the last sweep was {ago:.0f} s ago (expected every {every:g} s)", "capturesweepold")


def few(sentences: Iterable[str], entry: str = SENTENCES) -> list[Trouble]:
    """Return the first MOST_SAID sentences, and one with the number of the others."""
    found = [Trouble(one, entry) for one in sentences]
    more = len(found) - MOST_SAID
    return [*found[:MOST_SAID], Trouble(f"and {more:,} more like these", entry)] if more > 0 else found


def disagreement(locations: Mapping[str, str]) -> str:
    """Return a sentence about nodes that know the archive by different URLs; "" if they agree."""
    by_location = {location: node for node, location in sorted(locations.items(), reverse=True)}
    if len(by_location) < 2:
        return ""
    said = ", ".join(f"{location} ({node})" for location, node in sorted(by_location.items()))
    return f"nodes use different URLs for the archive, {said}: set [table] location to the URL of engines on all nodes"

"""What a status says is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from capture.ingest.board_trouble import Trouble


def texts(troubles: Iterable[Trouble]) -> list[str]:
    """Return the sentences, without their entries in the runbook."""
    return [one.text for one in troubles]

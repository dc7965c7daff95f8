from __future__ import annotations

import signal
from itertools import pairwise

import msgspec
import pytest

from capture.node.worker_reports import (
    FIRST_PAUSE,
    HANGS_AFTER,
    LATE_AFTER,
    LONGEST_PAUSE,
    REPORT_EVERY,
    STEADY_AFTER,
    Ended,
    Family,
    Report,
    Restarts,
    is_final,
)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_steady_run() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_after(1.0) for _ in range(8)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.pause_after(STEADY_AFTER - 0.1) == LONGEST_PAUSE
    assert restarts.pause_after(STEADY_AFTER) == FIRST_PAUSE
    assert restarts.pause_after(1.0) == 2 * FIRST_PAUSE
    assert repr(restarts) == "Restarts(next after 2 s)"


def test_a_worker_is_late_after_some_reports_and_hangs_long_after_that() -> None:
    assert all(later >= 5 * earlier for earlier, later in pairwise((REPORT_EVERY, LATE_AFTER, HANGS_AFTER)))


FAILED = Ended(1, "there is no stream S", captured=False)
LATER = Ended(1, "the store is full", captured=True)


@pytest.mark.parametrize(
    ("ended", "others_captured", "stop_on_failure", "final"),
    [
        (FAILED, False, False, True),  # no worker can begin
        (FAILED, True, False, False),  # others capture: its configuration may be mended
        (LATER, False, False, False),
        (LATER, True, True, True),  # the configuration says to stop
        (FAILED, True, True, True),
        (Ended(-signal.SIGKILL), False, True, False),  # a kill is not a failure of the configuration
        (Ended(0), False, True, False),  # stopped by a person
        (Ended(0, because="could not be started: no memory"), False, False, False),
    ],
)
def test_a_workers_end_is_final_if_a_restart_can_not_help(
    ended: Ended, others_captured: bool, stop_on_failure: bool, final: bool
) -> None:
    assert is_final(ended, others_captured=others_captured, stop_on_failure=stop_on_failure) is final


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(-signal.SIGKILL), "was ended by SIGKILL"),
        (Ended(-60), "was ended by signal 60"),
        (Ended(0), "ended with exit status 0"),
        (FAILED, "ended with exit status 1: there is no stream S"),
        (Ended(-9, because="did not report for 60 s and was killed"), "did not report for 60 s and was killed"),
    ],
)
def test_an_end_is_described_by_its_signal_its_error_or_what_the_supervisor_did(ended: Ended, said: str) -> None:
    assert str(ended) == said


def test_a_report_is_read_as_it_was_written() -> None:
    figures = [Family("natty_connected", "1 while a session is up.", "gauge", [("natty_connected", {}, 1.0)])]
    for report in (
        Report(),
        Report(reasons=["not connected yet"]),
        Report(captured=True, figures=figures, failure="x"),
    ):
        assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report

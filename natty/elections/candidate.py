"""One node of an election: its name, its term and its figures, without the code that elects it."""

from __future__ import annotations

from typing import Any

from natty.elections.driver import Driver
from natty.elections.options import ElectionOptions, default_node_name
from natty.elections.record import Subjects
from natty.elections.term import Term
from natty.jetstream import JetStream


class Candidate:
    """One node of an election: its name, its term while it leads, and its figures."""

    def __init__(self, jetstream: JetStream, options: ElectionOptions) -> None:
        self.jetstream = jetstream
        self.options = options
        self.node = options.node_name or default_node_name()
        self.subjects = Subjects(options.bucket, options.lease_key)
        self.term: Term | None = None
        self.losses: dict[str, int] = {}
        self.elected = 0
        self.succeeded = self.failed = 0  # runs of the work that `every` or `cron` repeats
        self.driver: Driver | None = None

    @property
    def stream(self) -> str:
        """The bucket's stream."""
        return self.subjects.stream

    def is_leader(self) -> bool:
        """Whether this node may act as the leader now: its own deadline has not passed."""
        return self.term is not None and self.term.remaining() > 0

    def step_down(self, to: str = "") -> None:
        """Leave office and stay a candidate; other nodes go first. Does nothing on a node that does not lead."""
        if self.term is not None:
            self.term.step_down(to)

    def transfer(self, to: str) -> None:
        """Hand the office over to the node `to`; otherwise like `step_down`."""
        if self.term is not None:
            self.term.transfer(to)

    @property
    def figures(self) -> dict[str, Any]:
        """Figures for monitoring: `leading`, `token`, `elected` (how often) and `losses` (how often for each reason).

        With `every` or `cron`: `succeeded` and `failed`, the runs of the work.

        For the current candidacy: `writes` stored, `failures` (writes refused or unanswered), and the worst times in
        seconds: `slowest` from sending a write to its ack, `least_left` of the lease when it was renewed, `latest`
        delay of a timer of the renewer, `longest_silence` between two sights of the lease.
        """
        driver = self.driver
        return {
            "leading": self.is_leader(),
            "token": self.term.token if self.term is not None else 0,
            "elected": self.elected,
            "losses": dict(self.losses),
            "succeeded": self.succeeded,
            "failed": self.failed,
            "writes": driver.writes if driver is not None else 0,
            "failures": driver.failures if driver is not None else 0,
            "slowest": driver.slowest if driver is not None else 0.0,
            "least_left": driver.least_left if driver is not None else float("inf"),
            "latest": driver.latest if driver is not None else 0.0,
            "longest_silence": driver.longest_silence if driver is not None else 0.0,
        }

from __future__ import annotations

from dataclasses import dataclass, field

from capture.cli.demo import flights


@dataclass
class Result:
    """What the demo found; the last table shows it."""

    messages: int = 0
    published_per_second: float = 0.0
    captured_per_second: float = 0.0
    plain_text: str = ""
    killed: str = ""
    successor: str = ""
    failover_seconds: float = 0.0
    blocks: int = 0
    block_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    verdict: str = ""
    verified: bool = False
    questions_asked: int = 0
    folder: str = ""
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    @property
    def answers_equal(self) -> bool:
        """Whether every question was asked, and Spark's answers are the CSV's."""
        return self.questions_asked == len(flights.QUESTIONS) and not self.differences

    @property
    def ok(self) -> bool:
        """Whether everything was as promised."""
        return self.verified and self.answers_equal

"""Runs a page of the documents as its reader does: files are written, commands are run, outputs are compared.

A fence with a title is a file (`python`, `toml`), or a terminal of its own (`sh`); `text` is output of the command
before it, or of the terminal in its title. Comments tell the runner what the prose tells the reader:
`<!-- test: stop TERMINAL -->` (Ctrl-C), `quit TERMINAL` (Ctrl-\\), `until TEXT` (repeat the next command),
`as PAGE SECTION…` (run these sections first), `lose the server`, `spark` (a mark).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patient import PATIENCE

ROOT = Path(__file__).parents[2]
_STEP = re.compile(
    r"^<!-- test: (?P<order>.*?) -->$|^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """An order to the runner, or a fence."""

    order: str
    language: str
    title: str
    body: str


def steps_of(text: str) -> list[Step]:
    """Return the steps of a page, or of a part of it."""
    return [
        Step(*(found[name] or "" for name in ("order", "language", "title", "body"))) for found in _STEP.finditer(text)
    ]


def sections_of(text: str, numbers: list[str]) -> str:
    """Return the sections of a page whose headings have these numbers."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return "".join(part for part in parts if part.startswith(tuple(f"## {number}. " for number in numbers)))


class Reader:
    """Someone who reads a page and does what it says, in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str], lose_server: Callable[[], None]) -> None:
        bin_folder = str(Path(sys.executable).parent)
        self._folder, self._lose_server = folder, lose_server
        self._environment = environment | {
            "PATH": bin_folder + os.pathsep + os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._last = ""
        self._until = ""

    def follow(self, page: Path) -> None:
        """Do all steps of a page."""
        self._take(steps_of(page.read_text()), page)

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._terminals.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _take(self, steps: list[Step], page: Path) -> None:
        for step in steps:
            if step.order:
                self._obey(step.order, page)
            elif step.language in ("python", "toml") and step.title:
                (self._folder / step.title).write_text(step.body)
            elif step.language == "sh" and step.title != "server":
                self._start(step) if step.title else self._run(step.body)
            elif step.language == "text":
                self._compare(step)

    def _obey(self, order: str, page: Path) -> None:
        verb, _, rest = order.partition(" ")
        if verb == "until":
            self._until = rest
        elif verb == "as":
            other, *numbers = rest.split()
            self._take(steps_of(sections_of((page.parent / other).read_text(), numbers)), page)
        elif order == "lose the server":
            self._lose_server()
        elif verb in ("stop", "quit"):
            process = self._terminals[rest]
            os.killpg(process.pid, signal.SIGINT if verb == "stop" else signal.SIGQUIT)
            process.wait(PATIENCE)
        elif verb != "spark":
            raise AssertionError(f"{page.name} has an unknown order: {order}")

    def _start(self, step: Step) -> None:
        with self._log(step.title).open("wb") as output:
            self._terminals[step.title] = self._bash(f"exec {step.body}", output)
        self._last = step.title

    def _run(self, script: str) -> None:
        until, self._until, self._last = self._until, "", ""
        deadline = time.monotonic() + 3 * PATIENCE
        while True:
            with self._log("").open("wb") as output:
                process = self._bash(f"set -e\n{script}", output)
                self._terminals[""] = process
                status = process.wait(3 * PATIENCE)
            text = self._said("")
            if not until or " ".join(until.split()) in text:
                assert status == 0, f"{script}\n{text}"
                return
            assert time.monotonic() < deadline, f"{script}\nhas not said {until!r} but {text}"
            time.sleep(0.5)

    def _bash(self, script: str, output: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[arg-type]
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed_signals,
        )

    def _compare(self, step: Step) -> None:
        terminal = step.title or self._last
        deadline = time.monotonic() + PATIENCE
        while missing := list(_missing(step.body, self._said(terminal))):
            is_over = not terminal or time.monotonic() > deadline  # a command has ended, a terminal goes on
            assert not is_over, f"{missing[0]!r} is not in {self._said(terminal)}"
            time.sleep(0.1)

    def _log(self, terminal: str) -> Path:
        return self._folder / f".{terminal or 'commands'}.log"

    def _said(self, terminal: str) -> str:
        return " ".join(self._log(terminal).read_text(errors="replace").split())


def _heed_signals() -> None:
    """In the child: let Ctrl-C and Ctrl-\\ act, which are ignored where a shell has started the tests with `&`."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _missing(wanted: str, said: str) -> Iterator[str]:
    """Yield the lines that do not come in this order."""
    position = 0
    for line in wanted.splitlines():
        text = " ".join(line.split())
        found = said.find(text, position)
        if found < 0:
            yield text
        else:
            position = found + len(text)

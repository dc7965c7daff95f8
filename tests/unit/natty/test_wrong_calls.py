"""mypy refuses each wrong call of tests/typing/wrong_calls.py, in its line and for its reason."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "typing" / "wrong_calls.py"
IGNORED = re.compile(r"  # type: ignore\[([a-z-]+)\]  # (.+)$")


@pytest.mark.long
def test_mypy_refuses_each_wrong_call_and_nothing_else(tmp_path):
    lines = FILE.read_text().splitlines()
    expected = {number: match for number, line in enumerate(lines, start=1) if (match := IGNORED.search(line))}
    assert len(expected) >= 12
    copy = tmp_path / "wrong_calls_without_ignores.py"
    copy.write_text("\n".join(IGNORED.sub("", line) for line in lines) + "\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary", str(copy)]
    told = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    found = re.findall(r":(\d+): error: (.*)  \[([a-z-]+)\]$", told.stdout, re.MULTILINE)
    assert {int(number) for number, _, _ in found} == set(expected), told.stdout + told.stderr
    for number, message, code in found:
        wanted_code, reason = expected[int(number)].groups()
        assert (code, reason in message) == (wanted_code, True), f"line {number}: {message} [{code}]"

"""The CPU cost of starting: `python tests/bench/bench_start.py [runs of each]`.

CPU seconds of a process, user and system, including its children; the median of the runs. The bytecode is compiled
before. The last column compares with a Python that does nothing.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench_table import print_machine, print_table

RUNS = 15
SCRIPTS = Path(sys.executable).parent
NOTHING = "python -c pass"
COMPLETE = {"_NATTY_COMPLETE": "complete_bash", "COMP_WORDS": "natty s", "COMP_CWORD": "1"}
STARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    NOTHING: ([sys.executable, "-c", "pass"], {}),
    "python -c 'import natty'": ([sys.executable, "-c", "import natty"], {}),
    "python -c 'from natty import Natty'": ([sys.executable, "-c", "from natty import Natty"], {}),
    "python -c 'import capture'": ([sys.executable, "-c", "import capture"], {}),
    "natty --version": ([str(SCRIPTS / "natty"), "--version"], {}),
    "natty --help": ([str(SCRIPTS / "natty"), "--help"], {}),
    "natty s<TAB>": ([str(SCRIPTS / "natty")], COMPLETE),
    "natty stream --help": ([str(SCRIPTS / "natty"), "stream", "--help"], {}),
    "natty kv get --help": ([str(SCRIPTS / "natty"), "kv", "get", "--help"], {}),
    "capture --version": ([str(SCRIPTS / "capture"), "--version"], {}),
    "capture --help": ([str(SCRIPTS / "capture"), "--help"], {}),
    "capture run --help": ([str(SCRIPTS / "capture"), "run", "--help"], {}),
}


def cpu_of(command: list[str], environment: dict[str, str]) -> float:
    """Run a command; return the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=os.environ | environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: int = RUNS) -> None:
    """Print the table."""
    took: dict[str, list[float]] = {name: [] for name in STARTS}
    for start in STARTS.values():
        cpu_of(*start)  # compiles
    for _ in range(runs):  # by turns: a busy moment strikes all of them
        for name, start in STARTS.items():
            took[name].append(cpu_of(*start))
    least = median(took[NOTHING])
    print_machine()
    rows = [(name, f"{median(one):.3f}", f"{median(one) / least:.1f}") for name, one in took.items()]
    print_table("", ("start", "CPU s", "times Python's own"), rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

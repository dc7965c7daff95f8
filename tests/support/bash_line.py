"""A bash of its own on a terminal: type a line, press TAB, and see which words the line has then."""

import contextlib
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

TO_BEGIN, TO_END = "\x01", "\x05"  # control keys of readline
PATIENCE = 60.0  # seconds, for a machine on which an answer takes longer than a user waits


class BashLine:
    """An interactive bash with the completion of programs, without a user's own files."""

    def __init__(self, folder, *programs):
        self.folder = folder
        self._screen, terminal = pty.openpty()
        os.set_blocking(self._screen, False)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            env=os.environ | {"HOME": str(folder), "PATH": path, "HISTFILE": "", "TERM": "dumb"},
        )  # fmt: skip
        os.close(terminal)
        for one in programs:
            self._type(f'eval "$({one} --show-completion bash)"\n')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bash.kill()
        self._bash.wait()
        os.close(self._screen)

    def complete(self, line, wanted):
        """Return the words of a line after TAB. Press TAB in it again as long as the last one is not `wanted`."""
        deadline = time.monotonic() + PATIENCE
        while (words := self._press(line))[-1] != wanted and time.monotonic() < deadline:
            pass
        return words

    def _press(self, line):
        found = self.folder / "words"
        found.unlink(missing_ok=True)
        self._type(f"{line}\t{TO_BEGIN}printf '%s\\n' {TO_END}> {found}.new; mv {found}.new {found}\n")
        while not found.exists():
            with contextlib.suppress(BlockingIOError):
                os.read(self._screen, 1 << 16)
            assert self._bash.poll() is None
            time.sleep(0.01)
        return found.read_text().splitlines()

    def _type(self, text):
        os.write(self._screen, text.encode())

"""A disk that fills up: a small private file system where one can be mounted, otherwise a simulated one.

Run as a program, it simulates the disk for a Python script: `full_disk.py FOLDER BYTES SCRIPT [ARGUMENT…]`. When all
files in the folder together would exceed BYTES, it writes to /dev/full, where the kernel returns ENOSPC.
"""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path


def can_mount():
    """Return whether a small file system can be mounted in a private namespace; most Linux needs no root for that."""
    unshare = shutil.which("unshare")
    command = [unshare or "", "-Urm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return bool(unshare) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def mounted(folder, size, script, *arguments):
    """Return the command that runs a script with a mounted file system of `size` bytes at a folder."""
    mount = f'mkdir -p "$0" && mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mount, str(folder), sys.executable, "-c", script, *map(str, arguments)]


def played(folder, size, script, *arguments):
    """Return the command that runs a script with a simulated disk of `size` bytes at a folder."""
    return [sys.executable, __file__, str(folder), str(size), script, *map(str, arguments)]


WAYS = [mounted, played] if can_mount() else [played]


def _play(folder, size):
    opened = io.open

    class OnDisk(io.BufferedWriter):
        def write(self, data):
            used = sum(os.lstat(Path(where) / name).st_size for where, _, names in os.walk(folder) for name in names)
            if used + len(data) > size:
                os.dup2(os.open("/dev/full", os.O_WRONLY), self.fileno())
            return super().write(data)

    def open_on_disk(file, mode="r", *more, **options):
        stream = opened(file, mode, *more, **options)
        return OnDisk(stream.detach()) if mode == "xb" and Path(file).is_relative_to(folder) else stream

    io.open = open_on_disk  # what pathlib calls


if __name__ == "__main__":
    where, limit, code, *rest = sys.argv[1:]
    _play(Path(where).absolute(), int(limit))
    sys.argv = ["-c", *rest]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})

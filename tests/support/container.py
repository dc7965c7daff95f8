"""The first process of a container without an engine: makes its root from the specification, and runs its command.

    unshare --net --mount --uts --pid --fork --kill-child python container.py SPECIFICATION

It waits for a line on its input, which says that its network is there. It needs root.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

TMPFS = "rw,noexec,nosuid,nodev"  # what an engine sets by itself


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def target(root, path, *, is_file=False):
    """Return the place of a path below the root, made if it is missing."""
    place = root / path.lstrip("/")
    if not place.exists():
        (place.parent if is_file else place).mkdir(parents=True, exist_ok=True)
        if is_file:
            place.touch()
    return place


def make_root(given):
    """Mount the image, what a system needs, and the volumes; then the root itself is read-only if it should be."""
    root = Path(given["root"])
    layers = f"lowerdir={given['layers']},upperdir={given['upper']},workdir={given['work']}"
    mount("-t", "overlay", "overlay", "-o", layers, root)
    mount("-t", "proc", "proc", target(root, "/proc"))
    for path in ("/dev", "/sys"):
        mount("--rbind", path, target(root, path))
    for path in given["hidden"]:
        mount("-t", "tmpfs", "-o", "mode=0700", "hidden", target(root, path))
    mount("--bind", given["hosts"], target(root, "/etc/hosts", is_file=True))
    for one in given["tmpfs"]:
        path, _, options = one.partition(":")
        mount("-t", "tmpfs", "-o", ",".join(filter(None, [TMPFS, options])), "tmpfs", target(root, path))
    for source, path, read_only in given["volumes"]:
        place = target(root, path, is_file=Path(source).is_file())
        mount("--bind", source, place)
        if read_only:
            mount("-o", "remount,bind,ro", place)
    if given["read_only"]:
        mount("-o", "remount,ro", root)
    return root


def main(file):
    given = json.loads(Path(file).read_text())
    sys.stdin.readline()
    socket.sethostname(given["hostname"])
    root = make_root(given)
    child = os.fork()
    if child == 0:
        os.chroot(root)
        os.chdir(given["folder"])
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.execve("/usr/bin/setpriv", ["setpriv", *given["privileges"], *given["command"]], given["environment"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    while True:  # as an engine's init does: end with the command, and collect processes that lost their parent
        ended, status = os.wait()
        if ended == child:
            sys.exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    main(sys.argv[1])

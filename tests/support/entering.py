"""The files of a package that a piece of work enters: how many a reader opens to follow a message."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def entered(package):
    """Return the set of a package's files, by their paths, whose functions run in this block.

    It sees this thread and those that start meanwhile: also those of the loop, which get a new executor.
    """
    root = Path(package.__file__).parent
    files, inside, is_open = set(), f"{root}/", True

    def note(frame, event, argument):
        if event == "call" and is_open and frame.f_code.co_filename.startswith(inside):
            files.add(str(Path(frame.f_code.co_filename).relative_to(root.parent)))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        is_open = False
        sys.setprofile(None)
        threading.setprofile(None)

"""Tasks of Spark that wait: a process that opens an object for which there is a pipe waits until it is released.

    monkeypatch.setenv("PYTHONPATH", str(prepared(folder)))
    pipe = hold(folder, path)
    ...
    while not let_go(pipe): ...

The objects are regular files: a store opens no other kind. This file is also the processes' `sitecustomize`.
"""

import os
import shutil
import sys
from pathlib import Path


def prepared(folder):
    """Prepare and return a folder: processes that have it in PYTHONPATH wait at its pipes."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    return folder


def hold(folder, path):
    """Make processes that open an object wait; return the pipe."""
    pipe = folder / Path(path).name
    os.mkfifo(pipe)
    return pipe


def let_go(pipe):
    """Release the waiting processes; return whether there was one."""
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no process waits there
        return False
    os.close(end)
    return True


def wait(event, arguments, folder=Path(__file__).parent):
    if event != "open" or not isinstance(arguments[0], str):
        return
    pipe = folder / Path(arguments[0]).name
    if arguments[0] == str(pipe) or not pipe.is_fifo():
        return
    os.close(os.open(str(pipe), os.O_RDONLY))
    pipe.unlink(missing_ok=True)


if __name__ == "sitecustomize":
    sys.addaudithook(wait)

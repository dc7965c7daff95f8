"""How the driver's process begins, run by its path so that nothing is imported before it is bound to its parent.

Importing pyspark takes seconds: a parent that is killed meanwhile must not leave the process behind.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def _die_with(parent: int) -> None:
    """Be killed when the parent's thread that started us ends (Linux); elsewhere the end of standard input tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit("the process that started Spark's driver has ended")


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    from capture.spark.driver import main

    main()

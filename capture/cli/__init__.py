"""The command line `capture`. It needs the extra `capture`, and prints that if it is missing."""

import os
import sys

from natty.cli.early_signals import guard, open_standard_streams, unguard


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise numpy, which Arrow imports, starts one for each core
    open_standard_streams()
    guard("capture", sys.argv[1:])
    try:
        from capture.cli.app import prepare

        run = prepare(sys.argv[1:])
    except ImportError as error:
        from natty.errors import how_to_install

        sys.exit(f"capture: the command line needs {error.name}; {how_to_install('capture')}")
    unguard()
    run()

"""The command line `capture`. It needs the extra `capture`; without it, it says so."""

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    if "run" in sys.argv:  # to import takes a second; from there on the node sees to signals
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))  # nothing has begun
    try:
        from capture.cli.app import main as run
    except ImportError as error:
        sys.exit(f'capture: the command line needs {error.name}; run: pip install "natty-nats[capture]"')
    run()

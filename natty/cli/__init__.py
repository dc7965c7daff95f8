"""The command line `natty`. It needs the extra `cli`, and prints that if it is missing."""

import sys

from natty.cli.early_signals import guard, open_standard_streams, unguard


def main() -> None:
    """Run the command line."""
    open_standard_streams()
    guard("natty", sys.argv[1:])
    try:
        from natty.cli.app import prepare

        run = prepare(sys.argv[1:])
    except ImportError as error:
        from natty.errors import how_to_install

        sys.exit(f"natty: the command line needs {error.name}; {how_to_install('cli')}")
    unguard()
    run()

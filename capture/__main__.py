"""`python -m capture` runs the command line."""

from capture.cli import main

main()

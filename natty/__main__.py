"""`python -m natty` runs the command line."""

from natty.cli import main

main()

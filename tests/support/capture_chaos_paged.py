"""`capture` with small pages: an archive of a few blocks has an index of several levels."""

from capture.archive.index import tree
from capture.cli import main

if __name__ == "__main__":
    tree.SIZES = tree.Sizes(leaf=3000, inner=2000, apart=45, inline=0)
    main()

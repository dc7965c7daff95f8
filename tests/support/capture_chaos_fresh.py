"""`capture` that merges without Spark, in its own process, with small pages and a table that is soon crowded.

So a short run has merges, fresh commits beside them, indexes of several levels, and merges that begin at once.
"""

from capture.archive.index import tree
from capture.cli import main
from capture.maintenance import fresh
from capture.node import fresh_keeper, leader_tasks, node
from capture.testing import ArrowEngine


class InProcess:
    """Stands where the driver of Spark does."""

    def __init__(self, options, **more):
        pass

    async def __aenter__(self):
        return ArrowEngine()

    async def __aexit__(self, *_):
        pass


if __name__ == "__main__":
    tree.SIZES = tree.Sizes(leaf=3000, inner=2000, apart=60, inline=0)
    fresh.CROWDED, fresh.MOST_SHOWN, fresh_keeper.BETWEEN = 6, 9, 2.0
    node.unavailable = lambda options: ""
    leader_tasks.SparkDriver = InProcess
    main()

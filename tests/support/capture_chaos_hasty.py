"""A broken `capture`: it acknowledges a block's messages before it stores the block.

Its sweep does not store messages that no node has stored.

It is the control of capture_chaos.py, which must detect this. The first process of a node dies in between, once.
"""

import asyncio
import os
import signal
from pathlib import Path

from capture.cli import main
from capture.ingest.commit import Committer
from capture.node.heal import Healer
from capture.node.status.progress import Missing

LATE = 0.5  # seconds
DIED = Path("died")  # in the node's own folder

commit = Committer.commit


async def hasty_commit(self, block):
    self._acknowledger.ack(block.records)
    await asyncio.sleep(LATE)
    if not DIED.exists():
        DIED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return await commit(self, block)


async def not_tended(self, progress, unstored):
    return Missing(missing=unstored)


if __name__ == "__main__":
    Committer.commit = hasty_commit
    Healer.tend = not_tended
    main()

"""Archives as earlier versions wrote them: `tests/archives/format-<n>.tar.xz`, each made by the code of its time.

Both have the messages SEQUENCES: in table files, in adopted blocks, and in one block that waits for the sweep. The
documents of format 2 are signed by `archived.KEYS`. In format 1 one chain describes blocks and table.
"""

import tarfile
from pathlib import Path

from archived import Archived

from capture.archive.chain import latest_offline
from capture.archive.manifest import Manifest
from capture.archive.recording import Recording
from capture.archive.table import Table

FOLDER = Path(__file__).parents[1] / "archives"
FORMATS = (1, 2)
SEQUENCES = [1, 2, 3, 4, 6, 7, 8, 9, 20, 21, 24, 25]


def unpack(number, folder):
    """Write an archive of this format into a folder."""
    with tarfile.open(FOLDER / f"format-{number}.tar.xz") as file:
        file.extractall(folder, filter="data")


async def old_archive(number, store=None, signer=None, token=20):
    """Return an `Archived` of this format, in this store or in memory, whose leaders have not begun."""
    archived = Archived(signer, token=token)
    if store is not None:
        archived.store = store
    with tarfile.open(FOLDER / f"format-{number}.tar.xz") as file:
        for one in file.getmembers():
            await archived.store.put(one.name, file.extractfile(one).read())
    for kind in (Manifest, Table, Recording):
        head = await latest_offline(archived.store, kind)
        archived.heads[kind].head = head
        archived.heads[kind].highest_token = head.token if head else 0
    return archived

"""What a leader does about the table for other engines, by whether these can reach the store."""

from capture.archive.iceberg_state import Expiry, Iceberg
from capture.archive.manifest import Stored
from capture.archive.table import Table, TableChange
from capture.node.exposure import LoadedExposure
from capture.stores import MemoryStore, OwnStore

FILE = Stored(
    path="table/1.parquet",
    stream="S",
    key="",
    interval=0,
    first=1,
    last=1,
    count=1,
    bytes=1,
    sha256="",
    format="parquet",
    sequences=b"1",
)


async def test_pointers_to_metadata_that_is_not_maintained_any_more_are_removed():
    """Else the table would be continued later without the changes of that time."""
    exposed = Iceberg(location="s3://lake/iceberg/S", number=1, metadata="m", sha256="", snapshots=[])
    table = Table(files=[FILE], iceberg={"S": exposed})
    unreachable = LoadedExposure(OwnStore(MemoryStore()), Expiry(), "node")
    left = await unreachable.expose(TableChange(table, [FILE], [], None, token=1, now=1.0))
    assert left.iceberg == {}
    assert left.files == [FILE]
    assert not unreachable.is_due(table, 1.0)

"""The states that an archive's leader and a node would publish; neither ever counts as late."""

from capture.archive.iceberg_state import CatalogState, FreshState, TableState
from capture.ingest.board import ArchiveState, NodeState

STATE = ArchiveState(
    archive="",
    leader="node-1",
    token=7,
    term=1000,
    since=1_790_000_000.0,
    swept=1_790_000_100.0,
    seconds=0.25,
    every=1e6,
    manifest=41,
    blocks=3,
    messages=1234,
    bytes=56_789,
    adopted=2,
    table=5,
    files=6,
    rows=70_000,
    table_bytes=8_900_000,
    compacted=1_790_000_050.0,
    compactor="node-2",
    removed_objects=9,
    removed_bytes=1_000_000,
    tables=[
        TableState(
            stream="ORDERS",
            location="s3://lake/iceberg/ORDERS",
            snapshots=15,
            current="6129484611666145821",
            made=1_790_000_050.0,
            expires=1_790_003_600.0,
        )
    ],
)
NODE = NodeState(
    node="node-1",
    version="1.2",
    since=1_790_000_000.0,
    every=1e6,
    stored={"messages": 4321},
    pending=17,
    catalogs=[CatalogState(stream="ORDERS", entry="lake.orders", number=12, since=1_790_000_000.0)],
    fresh=FreshState(shown=120, messages=1100, committed=1_790_000_099.0, waiting={"encrypted": 3, "not Parquet": 1}),
)

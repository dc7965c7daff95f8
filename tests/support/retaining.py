"""Objects of an archive for tests of retention, with their paths, ages and sizes."""

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences


def stored(first, last=None, *, stream="S", key="k", interval=0, size=100, latest=0.0, folder="blocks"):
    last = first if last is None else last
    return Stored(
        path=f"{folder}/{stream}/{key}/{interval}-{first}-{last}.parquet",
        stream=stream,
        key=key,
        interval=interval,
        first=first,
        last=last,
        count=last - first + 1,
        bytes=size,
        sha256="",
        format="parquet",
        sequences=Sequences.from_range(first, last).to_bytes(),
        max_ns=int(latest * 1e9),
    )

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.archive.manifest import (
    BLOCKS,
    ENTRIES,
    Partition,
    block_path,
    decode_entry,
    entry_block,
    entry_path,
    table_path,
)
from capture.archive.picture import read_picture
from capture.errors import ConfigError, ManifestError
from capture.formats import parquet, writer
from capture.ingest import layout as layouts
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.keys import key_text
from capture.ingest.layout import LONGEST_FOLDER, dated, guard, layout
from capture.ingest.record import Records
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.sweep import sweep
from capture.stores.contract import check_path
from capture.stores.file import FileStore
from capture.testing import ArrowEngine, HeadState, MemoryHead
from capture.verification.objects import read_archive

HOUR = 1_795_230_000  # 2026-11-21 03:00 UTC


def here(key: str = "eu", seconds: int = 3600) -> Partition:
    return Partition("ORDERS", key, HOUR, seconds)


def by_customer(partition: Partition) -> str:
    return f"backup/{partition.folder}"


def one_folder(_: Partition) -> str:
    return ""


def test_layouts_lay_out_like_this() -> None:
    assert here().hive() == "stream=ORDERS/key=eu/date=2026-11-21/hour=03"
    assert dated(here()) == "eu/2026/11/21/03/00"
    assert dated(here("a/b", 60)) == "a%2Fb/2026/11/21/03/00"
    assert dated(here("/region=eu/level=3")) == "region=eu/level=3/2026/11/21/03/00"


def test_they_are_chosen_by_name() -> None:
    assert layout("hive") is Partition.hive
    assert layout("dated") is dated
    assert layout(f"{__name__}:by_customer")(here()) == "backup/eu"


@pytest.mark.parametrize("spec", ["daily", "nowhere:at_all", f"{__name__}:HOUR", ""])
def test_one_that_is_not_there_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="layout"):
        layout(spec)


@given(st.one_of(st.text(max_size=40), st.sampled_from([".", "..", "...", "/", "//", "/a=b", ".tmp", "a/../b", "\\"])))
def test_whatever_the_key_a_block_lies_below_blocks_and_is_found_by_its_entry(key: str) -> None:
    for place in (Partition.hive, dated):
        folder = place(here(key_text(key)))
        path = block_path(Partition("ORDERS", "", 0, 0), 1, 2, 2, "ab" * 32, ".parquet", folder=folder)
        assert check_path(path).startswith(BLOCKS)
        assert entry_block(check_path(entry_path(path))) == path
        assert check_path(table_path(path, 7, "00")).startswith("table/")


@pytest.mark.parametrize(
    "folder",
    ["..", "a/../b", "/etc", "a//b", "a/", ".", "a\\b", "a\nb", "x" * 256, "x/" * 300 + "x", "\ud800", None, b"eu"],
)
def test_what_is_no_folder_is_laid_out_in_the_way_of_hive_and_the_reason_logged(
    folder: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert guard(lambda _: folder)(here()) == here().hive()  # type: ignore[arg-type,return-value]
    assert "key 'eu'" in caplog.text
    assert len(caplog.records) == 1


def test_a_layout_that_raises_keeps_no_message_from_being_stored(caplog: pytest.LogCaptureFixture) -> None:
    assert guard(lambda partition: {}[partition.key])(here()) == here().hive()
    assert "the Hive layout is used: 'eu'" in caplog.text


def test_a_folder_may_be_long_but_leaves_room_for_the_name() -> None:
    longest = "/".join(["x" * 199] * 3)
    assert len(longest) < LONGEST_FOLDER
    assert guard(lambda _: longest)(here()) == longest


def test_paths_without_a_folder_are_paths_too() -> None:
    path = block_path(Partition("ORDERS", "", 0, 0), 1, 2, 2, "ab" * 32, ".parquet", folder="")
    assert path == "blocks/ORDERS-1-2-2-abababab.parquet"
    assert entry_path(path) == "_entries/ORDERS-1-2-2-abababab.parquet.json"
    assert entry_block(entry_path(path)) == path
    assert table_path(path, 12, "00ff") == "table/c-12-00ff.parquet"


FACTS = {"stream": "S", "key": "k", "interval": 0, "first": 1, "last": 1, "count": 1, "bytes": 1, "sha256": ""}


@pytest.mark.parametrize(
    "path", ["_manifest/7.json", "table/x.parquet", "blocks/../_manifest/7.json", "blocks", "/blocks/x"]
)
def test_an_entry_that_names_no_block_is_never_believed(path: str) -> None:
    data = msgspec.json.encode({**FACTS, "path": path, "format": "raw", "sequences": ""})
    with pytest.raises(ManifestError, match=r"e is damaged: .*path"):
        decode_entry(data, "e")


# --- an archive in any layout: sweep, compaction and verification read entries, never paths --------------------------


class Ignored:
    def ack(self, replies: list[bytes]) -> None:
        pass

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        raise AssertionError(replies)


def block(key: str, *sequences: int) -> SealedBlock:
    count = len(sequences)
    records: Records[None] = Records(
        "ORDERS",
        list(sequences),
        [HOUR * 10**9] * count,
        [b"orders.x"] * count,
        [b""] * count,
        [b"payload %d" % sequence for sequence in sequences],
        [1] * count,
        [b"reply.%d" % sequence for sequence in sequences],
        [None] * count,
    )
    return SealedBlock("ORDERS", key, HOUR, records, "age")


@pytest.mark.parametrize(
    "place", [Partition.hive, dated, by_customer, one_folder], ids=["hive", "dated", "by customer", "one folder"]
)
async def test_an_archive_of_any_layout_is_swept_compacted_and_verified(place: layouts.Layout, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    committer = Committer(store, writer("parquet"), Ignored(), CommitOptions(), layout=place)
    for one in (block("eu", 1, 4), block("..", 2, 5), block("eu", 3), block("/region=us/level=3", 6), block("eu", 1)):
        await committer.commit(one)
    manifest, table = HeadState(), HeadState()
    report = await sweep(store, MemoryHead(1, manifest), table.read, now=0.0)
    assert (report.adopted, report.messages, report.dangling, report.unreadable) == (5, 7, [], [])
    picture = await read_picture(store, manifest.read, table.read)
    holdings = (await read_archive(store, picture, deep=True))["ORDERS"]
    assert (list(holdings.stored), holdings.problems) == ([1, 2, 3, 4, 5, 6], ())
    policy = Policy(min_files=1, max_wait=0.0)
    await compact(store, MemoryHead(1, table), manifest.read, ArrowEngine(), policy, now=0.0, grace=1e9)
    picture = await read_picture(store, manifest.read, table.read)
    assert not picture.blocks
    assert {one.key: one.count for one in picture.files} == {"eu": 3, "..": 2, "/region=us/level=3": 1}
    rows = [row for one in picture.files for row in parquet.ParquetWriter().read(await store.get(one.path)).to_pylist()]
    assert {row["sequence"]: row["payload"] for row in rows} == {n: b"payload %d" % n for n in range(1, 7)}
    assert sha256(await store.get(picture.files[0].path)).hexdigest() == picture.files[0].sha256
    await sweep(store, MemoryHead(1, manifest), table.read, now=10.0)
    await sweep(store, MemoryHead(1, manifest), table.read, now=1e10)
    assert await store.list(BLOCKS) == await store.list(ENTRIES) == []

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
    is_block,
    is_outside,
    table_path,
)
from capture.archive.picture import read_picture
from capture.archive.trust import check_vouched
from capture.errors import ConfigError, ManifestError
from capture.formats import parquet, writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.keys import key_text
from capture.ingest.layout import LONGEST_FOLDER, dated, guard, is_outside_blocks, layout
from capture.ingest.record import Delivered, Records
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
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


def test_a_slash_before_the_name_drops_the_folder_of_blocks() -> None:
    assert layout("/hive")(here()) == f"/{here().hive()}"
    assert layout("/dated")(here()) == "/eu/2026/11/21/03/00"
    assert layout(f"/{__name__}:by_customer")(here()) == "/backup/eu"
    assert [is_outside_blocks(spec) for spec in ("/dated", "dated", "/a:b")] == [True, False, True]
    path = block_path(here(), 1, 2, 2, "ab" * 32, ".parquet", folder=layout("/dated")(here()))
    assert path == "eu/2026/11/21/03/00/ORDERS-1-2-2-abababab.parquet"
    assert entry_path(path) == "_entries/~/eu/2026/11/21/03/00/ORDERS-1-2-2-abababab.parquet.json"


@pytest.mark.parametrize("key", ["_manifest", "_later", "table", "Table", "iceberg", "blocks", "BLOCKS"])
def test_a_key_named_like_a_folder_of_the_archive_stays_in_blocks(key: str) -> None:
    path = block_path(here(key), 1, 2, 2, "ab" * 32, ".parquet", folder=layout("/dated")(here(key)))
    assert path.startswith(BLOCKS)
    assert entry_block(entry_path(path)) == path


@pytest.mark.parametrize("spec", ["daily", "nowhere:at_all", f"{__name__}:HOUR", "", "/", "//dated", "/daily"])
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


@given(
    st.one_of(st.text(max_size=40), st.sampled_from([".", "..", "/", "/a=b", ".tmp", "_entries", "TABLE", "~", "~/x"]))
)
def test_whatever_the_key_a_block_outside_of_blocks_is_known_as_one_and_found_by_its_entry(key: str) -> None:
    for place in (layout("/hive"), layout("/dated")):
        folder = place(here(key_text(key)))
        path = block_path(Partition("ORDERS", "", 0, 0), 1, 2, 2, "ab" * 32, ".parquet", "00ff", folder=folder)
        assert is_block(check_path(path))
        assert entry_block(check_path(entry_path(path))) == path
        inside = block_path(Partition("ORDERS", "", 0, 0), 1, 2, 2, "ab" * 32, ".parquet", "00ff", folder=folder[1:])
        assert table_path(path, 7, "00") == table_path(inside, 7, "00")  # both wait for the same merge
        assert is_outside(path) or path == inside


@pytest.mark.parametrize(
    "folder",
    [
        "..",
        "a/../b",
        "/etc",
        "a//b",
        "a/",
        ".",
        "a\\b",
        "a\nb",
        "x" * 256,
        "x/" * 300 + "x",
        "\ud800",
        None,
        b"eu",
        "~/x",
    ],
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
    "path",
    [
        "_manifest/7.json",
        "table/x.parquet",
        "blocks/../_manifest/7.json",
        "blocks",
        "/blocks/x",
        "README.md",
        "eu/notes.txt",
        "_manifest/S-1-1-1-00000000.raw",
        "Table/S-1-1-1-00000000.raw",
        "iceberg/S-1-1-1-00000000.raw",
    ],
)
def test_an_entry_that_names_no_block_is_never_believed(path: str) -> None:
    data = msgspec.json.encode({**FACTS, "path": path, "format": "raw", "sequences": ""})
    with pytest.raises(ManifestError, match=r"e is damaged: .*path"):
        decode_entry(data, "e")


# --- an archive in any layout: sweep, compaction and verification read entries, never paths --------------------------


class Ignored:
    def ack(self, messages: Delivered) -> None:
        pass

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        raise AssertionError(messages)


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


def committer(store: FileStore, spec: str) -> Committer:
    return Committer(store, writer("parquet"), Ignored(), CommitOptions(), layout=layout(spec))


@pytest.mark.parametrize(
    "spec",
    [
        "hive",
        "dated",
        f"{__name__}:by_customer",
        f"{__name__}:one_folder",
        "/hive",
        "/dated",
        f"/{__name__}:one_folder",
    ],
)
async def test_an_archive_of_any_layout_is_swept_compacted_and_verified(spec: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    made = committer(store, spec)
    for one in (block("eu", 1, 4), block("..", 2, 5), block("eu", 3), block("/region=us/level=3", 6), block("eu", 1)):
        await made.commit(one)
    manifest, table = HeadState(), HeadState()
    report = await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=0.0)
    assert (report.adopted, report.messages, report.dangling, report.unreadable) == (5, 7, [], [])
    picture = await read_picture(store, manifest.read, table.read)
    holdings = (await read_archive(store, picture, deep=True))["ORDERS"]
    assert (list(holdings.stored), holdings.problems) == ([1, 2, 3, 4, 5, 6], ())
    policy = Policy(min_files=1, max_wait=0.0)
    await compact(TableLeading(store, MemoryHead(1, table), manifest.read, grace=1e9), ArrowEngine(), policy, now=0.0)
    picture = await read_picture(store, manifest.read, table.read)
    assert not picture.blocks
    assert {one.key: one.count for one in picture.files} == {"eu": 3, "..": 2, "/region=us/level=3": 1}
    rows = [row for one in picture.files for row in parquet.ParquetWriter().read(await store.get(one.path)).to_pylist()]
    assert {row["sequence"]: row["payload"] for row in rows} == {n: b"payload %d" % n for n in range(1, 7)}
    assert sha256(await store.get(picture.files[0].path)).hexdigest() == picture.files[0].sha256
    await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=10.0)
    await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=1e10)
    assert await store.list(BLOCKS) == await store.list(ENTRIES) == []
    assert {one.path.partition("/")[0] for one in await store.list()} == {"_manifest", "_table", "table"}


async def test_leftovers_outside_of_blocks_are_found_and_nothing_else_is_touched(tmp_path: Path) -> None:
    store, manifest = FileStore(tmp_path), HeadState()
    made = committer(store, "/dated")
    await made.commit(block("eu", 1, 2))
    await made.commit(block("us", 3))
    (left,) = await store.list("us/")  # its writer died before the entry
    await store.delete(entry_path(left.path))
    (kept,) = await store.list("eu/")
    name = kept.path.rpartition("/")[2]
    foreign = [
        "notes.txt", "eu/2026/orders-1-2.csv", "README.md", "_later/x-1-1-1-00000000.raw",
        "sub/_archive.json", f"sub/eu/{name}", f"sub/blocks/eu/{name}", "table/mine.parquet",
        "iceberg/x-1-1-1-00000000.raw",
    ]  # fmt: skip
    for path in foreign:
        await store.put(path, b"of somebody else")
    report = await sweep(Leading(store, MemoryHead(1, manifest), HeadState().read), now=0.0, outside=True)
    assert report.adopted == 1
    assert left.path in {one.path for one in await store.list()}, "it may still be written"
    await sweep(
        Leading(store, MemoryHead(1, manifest), HeadState().read), now=1e10
    )  # this leader's layout is another one
    assert {one.path for one in await store.list() if not one.path.startswith("_manifest")} == {kept.path, *foreign}


async def test_a_block_outside_of_blocks_is_adopted_by_a_leader_of_another_layout(tmp_path: Path) -> None:
    store, manifest = FileStore(tmp_path), HeadState()
    await Committer(store, writer("parquet"), Ignored(), CommitOptions(), layout=layout("/dated")).commit(
        block("eu", 1)
    )
    report = await sweep(Leading(store, MemoryHead(1, manifest), HeadState().read), now=1e10)
    assert (report.adopted, report.dangling) == (1, [])
    holdings = await read_archive(store, await read_picture(store, manifest.read, HeadState().read), deep=True)
    assert (list(holdings["ORDERS"].stored), holdings["ORDERS"].problems) == ([1], ())


async def test_blocks_outside_of_blocks_without_a_manifest_are_not_trusted(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await check_vouched(store)
    await Committer(store, writer("parquet"), Ignored(), CommitOptions(), layout=layout("/dated")).commit(
        block("eu", 1)
    )
    with pytest.raises(ManifestError, match="no manifest that vouches"):
        await check_vouched(store)

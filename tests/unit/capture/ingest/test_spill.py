from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from full_disk import can_mount, mounted
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import SpillError
from capture.formats import writer
from capture.ingest.block import Groups, Limits, OpenBlocks, SealedBlock
from capture.ingest.record import Records
from capture.ingest.spill import Spill
from natty.wire.message import Batch

ROOT = Path(__file__).parents[4]
SIZE = 100  # bytes of a payload


def message(number: int, size: int = SIZE) -> tuple[bytes, bytes, bytes, bytes]:
    reply = b"$JS.ACK.ORDERS.capture.1.%d.%d.1792540800123456789.17" % (number, number)
    return b"orders.eu.%d" % number, reply, b"", bytes(size)


def group(key: str, *numbers: int, size: int = SIZE) -> tuple[str, int, Records[Any]]:
    return key, 0, Records.of(Batch([message(number, size) for number in numbers]))


def open_files(folder: Path) -> list[Path]:
    """Return the files of this process that are in the folder, with their names or without."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            target = file.readlink()
        except FileNotFoundError:
            continue
        if target.is_relative_to(folder):
            found.append(target)
    return found


# --- the same as in memory -------------------------------------------------------------------------------------------

texts = st.binary(max_size=30)
reasons = st.text(st.characters(), max_size=5)  # surrogates, too
messages = st.tuples(texts, texts, texts, st.integers(1, 2**31), st.none() | reasons)
additions = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 3600]), st.lists(messages, max_size=5)), max_size=4),
    max_size=8,
)


def groups_of(drawn: list[tuple[str, int, list[tuple[bytes, bytes, bytes, int, str | None]]]], after: int) -> Groups:
    groups = []
    for key, interval, given_ in drawn:
        count = len(given_)
        subjects, header_blocks, payloads, deliveries, errors = (
            [list(column) for column in zip(*given_, strict=True)] if given_ else [[], [], [], [], []]
        )
        records: Records[Any] = Records(
            "S",
            list(range(after + count, after, -1)),  # out of order, to be sorted
            [2**62 + after + index for index in range(count)],
            subjects,
            header_blocks,
            payloads,
            deliveries,
            [b"reply.%d" % (after + index) for index in range(count)],
            ["value"] * count,
            errors={index: reason for index, reason in enumerate(errors) if reason is not None},
            keys=["key"] * count,
        )
        groups.append((key, interval, records))
        after += count
    return groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("buffers")


@given(additions, st.integers(1, 9), st.integers(20, 300), st.integers(2, 30), st.integers(1, 6))
@pytest.mark.long
def test_disk_and_memory_seal_the_same_blocks_byte_for_byte(
    folder: Path,
    drawn: list[list[tuple[str, int, list[tuple[bytes, bytes, bytes, int, str | None]]]]],
    max_messages: int,
    max_bytes: int,
    max_pending: int,
    max_open: int,
) -> None:
    limits = Limits(
        max_messages=max_messages, max_bytes=max_bytes, max_pending=max_pending, max_open=max_open, max_age=3.0
    )
    spill = Spill(folder, segment_bytes=200)  # many blocks are in several
    buffers = OpenBlocks(limits), OpenBlocks(limits, spill)
    sealed: tuple[list[SealedBlock], list[SealedBlock]] = ([], [])
    count = 0
    for now, one in enumerate(drawn):
        groups = groups_of(one, count)
        count += sum(len(records) for _, _, records in groups)
        for blocks, kept in zip(buffers, sealed, strict=True):
            kept += blocks.add(groups, now=float(now)) + blocks.due(float(now))
        spill.write()
    for blocks, kept in zip(buffers, sealed, strict=True):
        kept += blocks.seal_all()
    assert list(map(repr, sealed[1])) == list(map(repr, sealed[0]))
    assert sum(block.count for block in sealed[1]) == count
    write = writer("raw").write
    for in_memory, on_disk in zip(*sealed, strict=True):
        assert on_disk.records == in_memory.records
        assert (on_disk.first, on_disk.last, on_disk.memory) == (in_memory.first, in_memory.last, in_memory.memory)
        assert write(on_disk) == write(in_memory)


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_files_have_no_name_and_go_with_the_last_block_that_is_in_them(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "made" / "buffers", segment_bytes=1000)
    blocks = OpenBlocks(Limits(max_messages=10), spill)
    sealed = blocks.add([group("a", *range(10))], now=0.0)
    blocks.add([group("b", 11)], now=0.0)
    spill.write()
    assert list(spill.folder.iterdir()) == []
    assert len(open_files(spill.folder)) == 2
    before = spill.disk_bytes
    assert before > 10 * SIZE
    assert sealed[0].records.payloads == [bytes(SIZE)] * 10
    del sealed
    assert len(open_files(spill.folder)) == 1
    assert 0 < spill.disk_bytes < before / 5


def test_ten_thousand_keys_need_few_files(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    blocks = OpenBlocks(Limits(), spill)
    for start in range(0, 20_000, 1000):
        assert not blocks.add([group(str(number % 10_000), number) for number in range(start, start + 1000)], now=0.0)
        spill.write()
    assert len(blocks) == 10_000
    assert len(open_files(tmp_path)) == 1
    assert all(one.records.sequences == [int(one.key), int(one.key) + 10_000] for one in blocks.seal_all())


def test_the_oldest_blocks_are_sealed_when_they_keep_too_much_of_the_disk(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 80_000)
    blocks = OpenBlocks(Limits(), spill)
    blocks.add([group("old", 1)], now=0.0)
    sealed: list[SealedBlock] = []
    for number in range(2, 60):
        sealed += blocks.add([group("late" if number > 50 else "early", number, size=900)], now=1.0)
    assert [(block.key, block.reason) for block in sealed] == [("old", "disk"), ("early", "disk")]
    assert sealed[0].count == 1


def test_a_folder_that_can_not_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpillError, match=r"cannot be written \(File exists\): .* check it, or name another one"):
        Spill(tmp_path / "file")


WRITES = """
import sys
from capture.errors import SpillError
from capture.ingest.spill import Spill
spill = Spill(sys.argv[1])
try:
    for _ in range(100):
        spill.append(bytes(50_000))
        spill.write()
except SpillError as error:
    print(error)
"""
LIMITED = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
LIMITED += "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"


@pytest.mark.parametrize("disk", ["limited", *(["mounted"] if can_mount() else [])])
def test_a_full_disk_is_said_in_one_sentence_with_what_to_do(tmp_path: Path, disk: str) -> None:
    folder = tmp_path / "buffers"
    command = [sys.executable, "-c", LIMITED + WRITES, str(folder)]
    if disk == "mounted":
        command = mounted(folder, 1_000_000, WRITES, folder)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (said,) = done.stdout.splitlines()
    reason = os.strerror(errno.ENOSPC if disk == "mounted" else errno.EFBIG)
    assert said == (
        f"the folder of the buffers, {folder}, is full ({reason}): messages that are not stored yet are returned to "
        "the server, "
        "nothing is lost; free space there, set buffers.max_disk_bytes to less than the free space, or name another "
        "one as "
        "buffers.folder"
    )


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 300, 3000])
@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.long
def test_what_open_blocks_take_is_estimated_honestly(tmp_path: Path, kind: str, keys: int) -> None:
    spill = Spill(tmp_path) if kind == "disk" else None
    gc.collect()
    tracemalloc.start()
    try:
        blocks = OpenBlocks(Limits(), spill)
        replies: set[bytes] = set()  # which the source keeps until they are settled
        for start in range(0, 3000, 500):
            groups = [group(f"key {number % keys}", number) for number in range(start, start + 500)]
            replies.update(*(records.replies for _, _, records in groups))
            assert not blocks.add(groups, now=0.0)
            if spill:
                spill.write()
        del groups
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(blocks) == keys
    assert taken < blocks.memory < 1.6 * taken

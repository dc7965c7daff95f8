"""`capture upgrade --dry-run`, and commands that read archives of each format, on a terminal and in a pipe."""

import asyncio
import json
from pathlib import Path

import pytest
from archived import ARCHIVE, STREAM, Archived
from capture_command import CaptureCommand
from old_archives import FORMATS, SEQUENCES, unpack

from capture.archive.identity import claim
from capture.stores import open_store


@pytest.fixture
def capture(monkeypatch, tmp_path, capfd):
    return CaptureCommand(monkeypatch, tmp_path, capfd)


DRY = ("upgrade", "--dry-run", "--offline")


@pytest.mark.parametrize("number", FORMATS)
def test_a_dry_run_says_what_would_be_written_and_what_that_means(number, capture, tmp_path):
    unpack(number, tmp_path / "lake")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    manifest = max((tmp_path / "lake" / "_manifest").iterdir())
    table = max((tmp_path / "lake" / "_table").iterdir()) if number > 1 else None
    status, out, err = capture(*DRY)
    assert (status, err) == (0, "")
    heading, first, second, *meaning = out.splitlines()
    assert heading.split() == ["document", "format", "objects", "bytes", "new", "bytes", "pages"]
    blocks, files = {1: ("3", "2"), 2: ("1", "2")}[number]
    size = f"{manifest.stat().st_size:,}"
    assert first.split()[:4] == [f"_manifest/{manifest.name}", str(number), blocks, size]
    size = f"{table.stat().st_size:,}" if table else "0"
    assert second.split()[:4] == [f"_table/{table.name if table else ''}", str(number), files, size]
    assert meaning == [
        "A node of this version upgrades when it leads; `capture upgrade` does it now.",
        "Blocks and table files stay as they are.",
        "Earlier versions of capture can't read format 3, and there is no way back:",
        "upgrade all nodes and readers first.",
    ]
    narrow = capture(*DRY, columns=80)[1]
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(word in narrow for word in (*first.split(), *second.split()))
    assert narrow.splitlines()[-4:] == meaning
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_documentation_shows_such_a_dry_run(capture, tmp_path):
    unpack(2, tmp_path / "lake")
    out = capture(*DRY)[1]
    page = (Path(__file__).parents[4] / "docs" / "archive.md").read_text()
    shown = page.partition("```text\n$ capture upgrade --dry-run\n")[2].partition("```")[0]

    def figures(text):
        """All but the size of the new documents, which depends on the version of the compression."""
        return [line if line.startswith(("A", "B", "E", "u")) else line.split()[:4] for line in text.splitlines()]

    assert figures(shown) == figures(out)


def test_a_terminal_of_30_columns_shows_every_figure(capture, tmp_path):
    unpack(2, tmp_path / "lake")
    status, out, _ = capture(*DRY, columns=30)
    words = capture(*DRY)[1].splitlines()[1].split()
    assert status == 0
    assert all(word in out.replace("\n", "") for word in words)


@pytest.mark.parametrize("number", FORMATS)
def test_a_dry_run_for_programs(number, capture, tmp_path):
    unpack(number, tmp_path / "lake")
    status, out, err = capture(*DRY, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["format"] == 3
    assert [set(one) for one in found["documents"]] == [
        {"path", "format", "objects", "bytes", "new_bytes", "pages"}
    ] * 2
    assert {one["format"] for one in found["documents"]} == {number}
    assert all(one["new_bytes"] > 0 and one["pages"] == 0 for one in found["documents"])


def test_an_archive_of_this_format_has_nothing_to_upgrade(capture, tmp_path):
    asyncio.run(Archived(folder=tmp_path / "lake").make())
    status, out, err = capture(*DRY)
    assert (status, err) == (0, "")
    _, first, second, last = out.splitlines()
    assert last == "the archive has format 3: there is nothing to upgrade"
    assert [line.split()[1:3] for line in (first, second)] == [["3", "2"], ["3", "1"]]
    assert [line.split()[4:] for line in (first, second)] == [["-", "-"]] * 2
    assert json.loads(capture(*DRY, "--json")[1])["documents"][0]["new_bytes"] is None


def test_an_archive_without_documents_has_nothing_to_upgrade(capture, tmp_path):
    asyncio.run(claim(open_store(str(tmp_path / "lake")), ARCHIVE, STREAM, "2026-11-21T03:00:00Z"))
    assert capture(*DRY) == (0, "the archive has format 3: there is nothing to upgrade\n", "")


def test_what_can_not_be_upgraded_is_a_sentence(capture, tmp_path):
    status, out, err = capture(*DRY, store="typo")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "there is no archive in " in err
    unpack(2, tmp_path / "lake")
    path = max((tmp_path / "lake" / "_manifest").iterdir())
    data = path.read_bytes()
    for changed, said in (
        (data.replace(b'"format":2', b'"format":4', 1), "has format 4; this version reads up to 3"),
        (data[:-9], "is damaged: "),
    ):
        path.chmod(0o644)
        path.write_bytes(changed)
        status, out, err = capture(*DRY)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"_manifest/{path.name} {said}" in err


def test_an_upgrade_needs_nats(capture, tmp_path):
    unpack(2, tmp_path / "lake")
    status, out, err = capture("upgrade", "--offline")
    assert (status, out) == (2, "")
    assert "--offline is for --dry-run: an upgrade is committed in NATS" in " ".join(err.replace("│", " ").split())


# --- readers ----------------------------------------------------------------------------------------------------------

COUNTED = ("sql", "SELECT COUNT(*) AS n, SUM(sequence) AS s FROM messages", "--json")


@pytest.mark.parametrize("number", FORMATS)
def test_every_reader_reads_archives_of_earlier_formats(number, capture, tmp_path):
    unpack(number, tmp_path / "lake")
    status, out, err = capture("cat", "--stream", STREAM)
    assert (status, err) == (0, "")
    assert [json.loads(line)["sequence"] for line in out.splitlines()] == SEQUENCES
    assert json.loads(capture(*COUNTED)[1]) == [{"n": len(SEQUENCES), "s": sum(SEQUENCES)}]
    listed = json.loads(capture("ls", "--json")[1])
    assert [len(listed[name]) for name in ("blocks", "table")] == [3 if number == 1 else 1, 2]
    status, out, err = capture("verify", "--offline", "--stream", STREAM)
    assert (err, "12 stored" in out) == ("", True)
    assert "damaged" not in out
    assert json.loads(capture("head", "--offline")[1].splitlines()[0])["path"].startswith("_manifest/")

"""`capture ls` prints the same whether it has all objects in a list or reads them page by page."""

import json

import pytest
from archived import Archived, store_block

from capture.archive.index import tree
from capture.archive.index.tree import Sizes
from capture.archive.manifest import ENTRIES
from capture.cli import ls, main
from natty.cli import tables

SHOWN = ["path", "kind", "messages", "bytes", "first", "last"]


@pytest.fixture(params=["neither", "blocks", "table", "both"])
async def archived(request, monkeypatch, tmp_path):
    """An archive with an index of several levels."""
    monkeypatch.setattr(tree, "SIZES", Sizes(leaf=900, inner=700, apart=60, inline=0))
    found = await Archived(folder=tmp_path / "lake").make()
    if request.param == "neither":
        return found
    for number in range(10, 40):
        await store_block(found.store, [number, number + 40, number + 80], key=f"k{number}" * (number % 5 + 1))
        if number == 25:
            await found.sweep()
            if request.param in ("table", "both"):
                await found.compact()
    if request.param in ("blocks", "both"):
        await found.sweep()
    return found


def printed(monkeypatch, capfd, archived, *words):
    monkeypatch.setattr("sys.argv", ["capture", "ls", "--store", archived.store.url, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capfd.readouterr().out


def test_the_json_is_that_of_one_document(monkeypatch, capfd, archived):
    whole = printed(monkeypatch, capfd, archived, "--json")
    monkeypatch.setattr(ls, "FEW", 0)
    assert printed(monkeypatch, capfd, archived, "--json") == whole
    assert {"blocks", "table", "new"} == json.loads(whole).keys()
    assert sum(map(len, json.loads(whole).values()))


def test_the_rows_are_those_of_one_table_and_are_counted(monkeypatch, capfd, archived):
    *rows, summary = printed(monkeypatch, capfd, archived).splitlines()
    monkeypatch.setattr(tables, "TOGETHER", 3)
    *parts, counted = printed(monkeypatch, capfd, archived).splitlines()
    assert [line.split() for line in parts] == [line.split() for line in rows]
    assert rows[0].split() == SHOWN
    assert counted == summary
    widths = [len(line) for line in parts[1:]]
    assert widths == sorted(widths)
    objects = json.loads(printed(monkeypatch, capfd, archived, "--json"))
    assert [line.split()[:2] for line in rows[1:]] == [
        [one["path"], kind]
        for name, kind in (("blocks", "block"), ("table", "table"), ("new", "new"))
        for one in objects[name]
    ]


@pytest.fixture
async def unswept(tmp_path):
    """An archive with adopted blocks, a table file, a block that was stored after the last sweep, and an odd entry."""
    found = await Archived(folder=tmp_path / "lake").make()
    await found.store.put(f"{ENTRIES}odd", b"odd")
    return found


def test_blocks_that_were_stored_after_the_last_sweep_are_listed_and_counted(monkeypatch, capfd, unswept):
    *rows, said = printed(monkeypatch, capfd, unswept).splitlines()
    shown = [line.split()[1:3] for line in rows[1:]]
    assert shown == [["block", "1"], ["block", "1"], ["table", "4"], ["new", "2"]]
    assert said.endswith(": 2 blocks, 1 table file, and 1 new block that the next sweep of a node adopts")
    objects = json.loads(printed(monkeypatch, capfd, unswept, "--json"))
    counts = {name: [one["count"] for one in found] for name, found in objects.items()}
    assert counts == {"blocks": [1, 1], "table": [4], "new": [2]}


def test_an_entry_that_cant_be_read_is_said_and_hides_no_other(monkeypatch, capfd, unswept):
    monkeypatch.setattr("sys.argv", ["capture", "ls", "--store", unswept.store.url])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert f"capture: an entry can't be read: {ENTRIES}odd " in capfd.readouterr().err

"""`capture ls` prints the same whether it has all objects in a list or reads them page by page."""

import json

import pytest
from archived import Archived, store_block

from capture.archive.index import tree
from capture.archive.index.tree import Sizes
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
    assert {"blocks", "table"} == json.loads(whole).keys()
    assert json.loads(whole)["blocks"] + json.loads(whole)["table"]


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
        [one["path"], kind] for name, kind in (("blocks", "block"), ("table", "table")) for one in objects[name]
    ]

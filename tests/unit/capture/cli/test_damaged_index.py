"""Commands that read an archive whose index was touched: one sentence, which names the page, and an exit status."""

import asyncio
import json

import pytest
from archived import STREAM
from capture_command import CaptureCommand
from wide_index import KINDS, WIDE, pages_of, wide_archive


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The archive's folder, and the paths of its pages by what they are; tests put back what they change."""
    folder = tmp_path_factory.mktemp("damaged") / "lake"

    async def make():
        with pytest.MonkeyPatch.context() as patch:
            archived = await wide_archive(patch, folder=folder)
        await archived.record(state={"messages": len(WIDE), "first_seq": 1, "last_seq": WIDE[-1]})
        return {kind: await pages_of(archived, kind) for kind in KINDS}

    return folder, asyncio.run(make())


@pytest.fixture
def capture(monkeypatch, pages, capfd):
    return CaptureCommand(monkeypatch, pages[0].parent, capfd)


COMMANDS = {
    "ls": ("ls",),
    "cat": ("cat", "--stream", STREAM),
    "sql": ("sql", "SELECT COUNT(*) AS n FROM messages", "--json"),
}
VERIFY = ("verify", "--offline", "--stream", STREAM)
DAMAGES = {
    "missing": ("is missing from file://", lambda data: None),
    "truncated": ("was changed: its SHA-256 is not its name", lambda data: data[:-1]),
    "exchanged": ("was changed: its SHA-256 is not its name", None),
}


REMEDY = (
    "The archive's index is damaged, its blocks and table files are not affected: restore {path} from a copy of the"
    " store, see docs/moving.md\n"
)


def damage(page, other, how):
    data = page.read_bytes()
    changed = other.read_bytes() if how is None else how(data)
    page.unlink()
    if changed is not None:
        page.write_bytes(changed)
    return data


@pytest.mark.parametrize("damaged", DAMAGES)
async def test_each_command_that_meets_the_page_names_it(damaged, capture, pages):
    lake, found = pages
    said, how = DAMAGES[damaged]
    for kind in KINDS:
        for what in ("root", "inner", "leaf", "set"):
            path = found[kind][what][-1]
            other = found[kind]["leaf" if what != "leaf" else "root"][0]
            data = damage(lake / path, lake / other, how)
            for words in COMMANDS.values():
                status, out, err = await run_in_thread(capture, *words)
                assert (status, out, err.count("\n")) == (1, "", 1), (what, words, err)
                assert f"{path} {said}" in err
                assert err.endswith(REMEDY.format(path=path))
            for more in ((), ("--no-checksums",)):
                status, out, err = await run_in_thread(capture, *VERIFY, *more)
                assert (status, err, out.count("\n")) == (3, "", 1), (what, out, err)
                assert out.count(f"{path} {said}") == 1
                assert REMEDY.format(path=path).strip() in out
                assert out.startswith(f"the archive could not be read; {path} {said}")
                assert not any(wrong in out for wrong in ("MISSING", "nothing stored", "is missing;"))
            (lake / path).unlink(missing_ok=True)
            (lake / path).write_bytes(data)
    status, out, _ = await run_in_thread(capture, *COMMANDS["sql"])
    assert (status, json.loads(out)) == (0, [{"n": len(WIDE)}])


async def test_pages_that_only_a_deep_check_reads_are_told_by_it(capture, pages):
    lake, found = pages
    for kind in KINDS:
        path = found[kind]["held"][0]
        data = damage(lake / path, lake / path, lambda data: data + b"x")
        status, out, _ = await run_in_thread(capture, *VERIFY)
        assert (status, out.count(f"{path} was changed: its SHA-256 is not its name")) == (3, 1)
        for words in COMMANDS.values():
            assert (await run_in_thread(capture, *words))[0] == 0
        (lake / path).write_bytes(data)


async def run_in_thread(capture, *words):
    """Commands have a loop of their own."""
    return await asyncio.to_thread(capture, *words)

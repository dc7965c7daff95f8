"""`capture upgrade` on archives of earlier formats; commands with a server on an index that was touched."""

import asyncio
import json
from base64 import b64decode, b64encode

import pytest
from archived import ARCHIVE, STREAM
from archiving import store_all, sweep_once
from electing import vacated_archive
from old_archives import SEQUENCES, unpack
from patient import PATIENCE
from secret import write_secret

from capture.archive.chain import latest_offline
from capture.archive.heads import COMPACTION, RECORDING, SWEEP, TermHead
from capture.archive.index import tree
from capture.archive.index.tree import Sizes
from capture.archive.manifest import Manifest
from capture.archive.recording import Recording
from capture.archive.table import Table
from capture.config.load import load
from capture.stores import open_store
from natty.elections import BUCKET

OPTIONS = ("--config", "capture.toml")
BY_HAND = ("--wait", PATIENCE)
CHAINS = ((SWEEP, Manifest), (RECORDING, Recording), (COMPACTION, Table))


@pytest.fixture
def archive(quick_shell, served, natty_name):
    """Return a function that makes an archive of an earlier format, which NATS knows as its leaders left it.

    One of format 1 gets a name of its own; format 2 is signed for its name. Without `heads`, NATS has lost its disk.
    """
    shell, lake = quick_shell, quick_shell.folder / "lake"

    async def work(natty, name, chains):
        await vacated_archive(natty, name)
        for key in await natty.keys(BUCKET):  # of an earlier test with this archive's name
            if key.startswith(f"capture.{name}"):
                await natty.delete(BUCKET, key)
        await natty.ensure_stream(STREAM, subjects=["upgraded.>"])
        created = (await natty.jetstream.request(f"STREAM.INFO.{STREAM}"))["created"]
        (lake / "_streams" / f"{STREAM}.json").write_text(json.dumps({"stream": STREAM, "created": created}))
        await vacated_archive(natty, name)
        for office, kind in chains:
            if (head := await latest_offline(open_store(str(lake)), kind)) is None:
                continue

            async def commit(term, office=office, head=head):
                pointer = TermHead(term, office)
                await pointer.read()
                await pointer.commit(head)

            await natty.election(office.election(name), lease=PATIENCE).run(commit)
            await vacated_archive(natty, name)

    async def forget(natty):
        await natty.jetstream.request(f"STREAM.DELETE.{STREAM}")

    def make(number, *, signs=True, heads=True):
        unpack(number, lake)
        name = natty_name("upgraded") if number == 1 else ARCHIVE
        (lake / "_archive.json").write_text(json.dumps({"archive": name}))
        served(lambda natty: work(natty, name, CHAINS if heads else ()))
        key = 'signing_key_file = "signing.key"\n' if signs and number == 2 else ""
        text = f'stream = "{STREAM}"\narchive = "{name}"\nstore = "lake"\nlease = {PATIENCE}\n{key}'
        (shell.folder / "capture.toml").write_text(text)
        write_secret(shell.folder / "signing.key", f"mine:{b64encode(bytes(range(32))).decode()}\n")
        return shell, lake, name

    yield make
    served(forget)


def objects(lake):
    """Return all objects but the README, which each command that leads brings up to date."""
    return {path: path.read_bytes() for path in lake.rglob("*") if path.is_file() and path.name != "README.md"}


def counted(shell):
    done = shell.capture("sql", "SELECT COUNT(*) AS n FROM messages", "--store", "lake", "--json")
    return json.loads(done.out)


@pytest.mark.parametrize("number", [1, 2])
def test_an_archive_is_upgraded_by_hand(number, archive):
    shell, lake, name = archive(number)
    before = objects(lake)
    assert counted(shell) == [{"n": len(SEQUENCES)}]
    dry = shell.capture("upgrade", *OPTIONS, "--dry-run")
    assert (dry.status, dry.err) == (0, "")
    assert dry.out.splitlines()[1].split()[1] == str(number)
    asked = shell.capture("upgrade", *OPTIONS)
    assert asked.status == 1
    assert asked.out == dry.out
    assert asked.err.endswith(
        f"Upgrade archive {name} to format 3, permanently? There is no terminal to ask on: give --force\n"
    )
    assert objects(lake) == before

    done = shell.capture("upgrade", *OPTIONS, *BY_HAND, "--force")
    assert (done.status, done.err) == (0, "")
    *first, last = done.out.splitlines()
    assert first == dry.out.splitlines()
    new = [path.relative_to(lake) for path in objects(lake).keys() - before.keys()]
    paths = [path for path in new if path.parts[0] in ("_manifest", "_table")]
    manifest, table = sorted(str(path) for path in paths)
    assert last == f"upgraded: {manifest} and {table} have format 3"
    assert [json.loads((lake / path).read_bytes())["format"] for path in paths] == [3, 3]
    assert all(("signature" in json.loads((lake / path).read_bytes())) == (number == 2) for path in paths)
    after = objects(lake)
    assert before.items() <= after.items()

    again = shell.capture("upgrade", *OPTIONS, *BY_HAND, "--force")
    assert again.out.splitlines()[-1] == "the archive has format 3: there is nothing to upgrade"
    assert objects(lake) == after
    assert counted(shell) == [{"n": len(SEQUENCES)}]
    swept = shell.capture("sweep", *OPTIONS, *BY_HAND, "--json")
    assert (swept.status, json.loads(swept.out)["adopted"]) == (0, 1)
    assert counted(shell) == [{"n": len(SEQUENCES)}]


def test_without_the_key_of_a_signed_archive_nothing_is_upgraded(archive):
    shell, lake, _ = archive(2, signs=False)
    before = objects(lake)
    done = shell.capture("upgrade", *OPTIONS, *BY_HAND, "--force")
    assert done.status == 1
    assert len(done.err.splitlines()) == 1
    assert "sign" in done.err
    assert objects(lake) == before


def test_while_a_node_of_an_earlier_version_leads_it_is_named(archive, served):
    shell, lake, name = archive(1)
    before = objects(lake)

    async def other(natty):
        async def hold(term):
            return await asyncio.to_thread(shell.capture, "upgrade", *OPTIONS, "--wait", "1s", "--force")

        return await natty.election(SWEEP.election(name), lease=PATIENCE, node_name="old-node").run(hold)

    done = served(other)
    assert done.status == 1
    assert f"old-node leads capture.{name} and is of an earlier version, or does this in a moment;" in done.err
    assert "Stop the nodes first, or give a longer --wait" in done.err
    assert objects(lake) == before


@pytest.mark.parametrize("number", [1, 2])
def test_an_archive_is_upgraded_by_hand_after_nats_has_lost_its_heads(number, archive):
    shell, lake, _ = archive(number, heads=False)
    before = objects(lake)
    dry = shell.capture("upgrade", *OPTIONS, "--dry-run")
    assert (dry.status, dry.err) == (0, "")
    assert dry.out == shell.capture("upgrade", *OPTIONS, "--dry-run", "--offline").out
    assert [line.split()[1] for line in dry.out.splitlines()[1:3]] == [str(number)] * 2
    assert objects(lake) == before
    done = shell.capture("upgrade", *OPTIONS, *BY_HAND, "--force")
    assert (done.status, done.err) == (0, "")
    assert done.out.endswith(" have format 3\n")
    after = objects(lake)
    assert before.items() <= after.items()
    new = [path.relative_to(lake) for path in after.keys() - before.keys()]
    assert [json.loads((lake / one).read_bytes())["format"] for one in new if one.parts[0] != "_index"] == [3, 3]
    assert shell.capture("upgrade", *OPTIONS, "--dry-run").out.endswith("there is nothing to upgrade\n")
    assert counted(shell) == [{"n": len(SEQUENCES)}]


@pytest.mark.parametrize("number", [1, 2])
def test_a_sweep_after_nats_has_lost_its_heads_deletes_nothing_that_the_newest_documents_name(number, archive):
    shell, lake, _ = archive(number, heads=False)
    before = objects(lake)
    kept = {path: data for path, data in before.items() if path.relative_to(lake).parts[0] in ("blocks", "table")}
    named = {one["path"] for part in json.loads(shell.capture("ls", "--store", "lake", "--json").out).values()
             for one in part if isinstance(one, dict) and "path" in one}  # fmt: skip
    assert len(named) > 2
    dry = shell.capture("sweep", *OPTIONS, "--dry-run", "--json")
    assert (dry.status, dry.err) == (0, "")
    assert not named & {one["path"] for one in json.loads(dry.out)}
    due = shell.capture("compact", *OPTIONS, "--dry-run", "--json")
    assert (due.status, due.err) == (0, "")
    assert json.loads(due.out)["waiting_files"] + sum(one["files"] for one in json.loads(due.out)["groups"]) > 0
    assert objects(lake) == before
    for _ in range(2):  # before the compaction has a leader, and after it
        swept = shell.capture("sweep", *OPTIONS, *BY_HAND, "--json")
        assert (swept.status, swept.err) == (0, "")
        assert all(objects(lake)[path] == data for path, data in kept.items() if str(path.relative_to(lake)) in named)
        assert counted(shell) == [{"n": len(SEQUENCES)}]
        upgraded = shell.capture("upgrade", *OPTIONS, *BY_HAND, "--force")
        assert upgraded.status == 0, upgraded


def test_verify_after_nats_has_lost_its_heads_reads_the_newest_documents(archive):
    shell, _, _ = archive(1, heads=False)
    done = shell.capture("verify", *OPTIONS)
    assert f"{len(SEQUENCES)} stored" in done.out


PREVIEWS = (
    ("sweep", "--dry-run"),
    ("compact", "--dry-run"),
    ("upgrade", "--dry-run"),
    ("upgrade", "--force"),
    ("catalog", "show"),
)


@pytest.mark.parametrize("words", PREVIEWS, ids=" ".join)
def test_the_store_of_an_archive_with_another_name_is_refused(words, archive):
    shell, lake, name = archive(1, heads=False)
    before = objects(lake)
    toml = shell.folder / "capture.toml"
    catalog = '[table.catalog]\ntype = "sql"\nuri = "sqlite:///catalog.db"\n' if words[0] == "catalog" else ""
    toml.write_text(toml.read_text().replace(f'archive = "{name}"', 'archive = "foreign"') + catalog)
    done = shell.capture(*words, *OPTIONS)
    assert (done.status, done.out) == (1, "")
    assert f"holds the archive '{name}', not 'foreign': choose another store" in done.err
    assert objects(lake) == before


TOUCHED = {
    "sweep": (("sweep", *BY_HAND), 1),
    "sweep --dry-run": (("sweep", "--dry-run"), 1),
    "compact --dry-run": (("compact", "--dry-run"), 1),
    "verify": (("verify",), 3),
    "purge": (("purge", "--captured", "--force"), 0),  # there is nothing that it may delete
    "restore": (("restore", "--as", "ANOTHER"), 1),
    "cat": (("cat",), 1),
}


def test_commands_that_meet_a_page_that_was_touched_name_it_and_change_nothing(
    quick_shell, make_stream, served, natty_name, monkeypatch
):
    monkeypatch.setattr(tree, "SIZES", Sizes(inline=0))
    shell, lake, stream = quick_shell, quick_shell.folder / "lake", make_stream(natty_name("touched"), 20)

    async def work(natty):
        config = load(None, {"stream": stream, "store": str(lake), "partition": "subject:1"}, environment={})
        await store_all(natty, config, open_store(str(lake)))
        await sweep_once(natty, config, open_store(str(lake)))
        await vacated_archive(natty, stream)

    served(work)
    document = json.loads(max((lake / "_manifest").iterdir()).read_bytes())
    page = lake / "_index" / "blocks" / b64decode(document["index"]["root"]).hex()
    data = page.read_bytes()
    for changed, said in ((None, "is missing from file://"), (data[:-1], "was changed: its SHA-256 is not its name")):
        page.unlink()
        if changed is not None:
            page.write_bytes(changed)
        before = objects(lake)
        for words, status in TOUCHED.values():
            done = shell.capture(*words, "--stream", stream, "--store", "lake")
            told = done.out + done.err
            assert done.status == status, (words, done)
            assert f"_index/blocks/{page.name} {said}" in told, (words, done)
            if words[0] == "verify":
                assert told.startswith("the archive could not be read: 20 sequences are unchecked (1–20); "), told
                assert not any(one in told for one in ("MISSING", "the archive that NATS knows", "another durable"))
            assert len(told.splitlines()) == (2 if words[0] == "purge" else 1), (words, done)
        assert objects(lake).items() >= before.items()
        page.unlink(missing_ok=True)
        page.write_bytes(data)
    healed = shell.capture("verify", "--stream", stream, "--store", "lake")
    assert (healed.status, "nothing is missing" in healed.out) == (0, True)

"""A node that is started with another store than its archive's: refused, with the ways on, each of which is taken."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from command_line import settings_of
from node_beside import running_here
from patient import PATIENCE, until
from troubles import texts

from capture.archive.heads import SWEEP
from capture.config.load import load
from capture.errors import OtherStoreError
from capture.ingest.board import Board
from capture.node.moved_store import check_not_moved
from capture.node.node import Node
from capture.node.status.status import look
from capture.stores import FileStore, MemoryStore, open_store
from capture.verification.check import check

EAGER = {"decoder": "raw", "limits__max_age": 0.2}


async def captured(fleet, config, held):
    """Capture with a node until a sweep has found so many messages in the archive."""
    async with running_here(Node(config)):
        board = Board(fleet.natty, config.name)
        async with asyncio.timeout(PATIENCE):
            while not (state := (await board.read()).state) or [one.held for one in state.streams] != [held]:
                await asyncio.sleep(0.05)


@pytest.fixture
async def first(fleet):
    """The configuration of an archive with ten messages, whose node has ended."""
    await fleet.publish([b"%d" % number for number in range(10)])
    config = load(fleet.configure(**EAGER))
    await captured(fleet, config, 10)
    return config


@pytest.fixture
def configured(fleet):
    """Return a function that writes a configuration with another store."""

    def configure(store="", **settings):
        return load(fleet.configure("other.toml", **EAGER, store=store or str(fleet.folder / "prod"), **settings))

    return configure


async def refusal(config):
    with pytest.raises(OtherStoreError) as refused:
        async with asyncio.timeout(PATIENCE):
            await Node(config).run()
    return str(refused.value)


async def until_troubled(fleet, config, enough):
    """Wait until the status tells of troubles that are enough."""
    async with asyncio.timeout(PATIENCE):
        while not enough(texts((await look(fleet.natty, [config]))[0].troubles)):
            await asyncio.sleep(0.05)


async def test_another_store_under_a_running_archive_is_refused_with_both_stores_and_the_ways_on(
    fleet, first, configured
):
    moved = configured()
    old, new = open_store(first.store).url, open_store(moved.store).url
    said = await refusal(moved)
    assert said.startswith(f"the archive {fleet.stream} is in {old}, not in {new}: NATS records manifest ")
    assert f"Copy the whole archive to {new} first; or go back to {old}; or start a new archive in {new}" in said
    assert not (fleet.folder / "prod").exists()


async def remove(folder):
    """Remove a folder that a thread of a node that was stopped may still write to."""

    def try_to_remove():
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    await until(try_to_remove)


async def test_an_archive_that_was_copied_goes_on_in_its_new_store(fleet, first, configured):
    moved = configured()
    shutil.copytree(fleet.store, fleet.folder / "prod")
    await remove(fleet.store)
    await fleet.publish([b"more"])
    await captured(fleet, moved, 11)
    checked = await check(fleet.natty, moved, open_store(moved.store))
    assert (checked.ok, len(checked.verdict.stored)) == (True, 11)


async def test_a_copy_that_is_older_than_what_was_committed_is_refused(fleet, first, configured):
    shutil.copytree(fleet.store, fleet.folder / "prod")
    await fleet.publish([b"more"])
    await captured(fleet, first, 11)
    assert "and that is not in" in await refusal(configured())


async def test_a_new_archive_with_another_durable_captures_everything_again(fleet, first, configured):
    anew = configured(archive=f"{fleet.stream}_2", durable="capture2")
    await captured(fleet, anew, 10)
    assert (await check(fleet.natty, anew, open_store(anew.store))).ok
    assert (await check(fleet.natty, first, open_store(first.store))).ok


async def test_a_new_archive_with_the_old_durable_is_refused_since_it_would_lack_what_that_has_acknowledged(
    fleet, first, configured
):
    said = await refusal(configured(archive=f"{fleet.stream}_2"))
    assert "its consumer capture has acknowledged messages up to sequence 10: they would be missing here" in said
    assert "another durable" in said


async def test_the_same_store_under_another_spelling_is_the_same(fleet, first):
    (fleet.folder / "link").symlink_to(fleet.store)
    for spelling in (fleet.store.as_uri(), str(fleet.folder / "link"), f"{fleet.folder}/../{fleet.folder.name}/lake"):
        async with running_here(Node(load(fleet.configure(**EAGER, store=spelling)))) as node:
            await until(lambda node=node: node.start.over)


async def test_an_old_copy_in_a_users_store_with_other_settings_is_not_taken_for_the_archive(fleet, monkeypatch):
    module, stores = ModuleType("vaults"), {"a": MemoryStore("a"), "b": MemoryStore("b")}
    module.vault = lambda name: stores[name]
    monkeypatch.setitem(sys.modules, "vaults", module)
    await fleet.publish([b"1"] * 10)
    config = load(fleet.configure(**EAGER, store="vaults:vault?name=a"))
    await captured(fleet, config, 10)
    for one in await stores["a"].list():
        await stores["b"].put(one.path, await stores["a"].get(one.path))
    await fleet.publish([b"2"] * 10)
    await captured(fleet, config, 20)
    said = await refusal(load(fleet.configure(**EAGER, store="vaults:vault?name=b")))
    assert said.startswith(f"the store vaults:vault?name=*** has lost the archive {fleet.stream}: ")


async def test_a_store_whose_archive_was_lost_is_refused(fleet, first):
    await remove(fleet.store)
    said = await refusal(first)
    assert said.startswith(f"the store {open_store(first.store).url} has lost the archive {fleet.stream}: ")
    assert not fleet.store.exists()


async def test_a_damaged_archive_is_captured_into_and_the_status_says_why_it_is_not_swept_until_it_is_mended(
    fleet, first
):
    store = open_store(first.store)
    head = await SWEEP.reader(fleet.natty, first.name)()
    lost = await store.get(head.path)
    await store.put("_manifest/0000000001-1.json", b"{}")
    await store.delete(head.path)
    async with running_here(Node(first)) as node:
        why = f"{node.name}: the sweep failed: the head names {head.path}, which is not in {store.url}"
        await until_troubled(fleet, first, lambda troubles: any(one.startswith(why) for one in troubles))
        await fleet.publish([b"more"])
        await fleet.until_all_acked(11)
        await store.put(head.path, lost)
        await until_troubled(fleet, first, lambda troubles: not any(one.startswith(why) for one in troubles))


async def test_a_head_that_went_back_with_its_server_is_no_other_archive(fleet, first):
    store = open_store(first.store)
    head = await SWEEP.reader(fleet.natty, first.name)()
    await store.put(f"_manifest/{head.number + 1:010d}-{head.token}.json", await store.get(head.path))
    await store.delete(head.path)
    await check_not_moved(fleet.natty, store, first)


async def test_another_archive_with_as_many_manifests_is_refused(fleet, first, configured):
    head, other = await SWEEP.reader(fleet.natty, first.name)(), open_store(configured().store)
    await other.put(f"_manifest/{head.number:010d}-{head.token + 1}.json", b"{}")
    with pytest.raises(OtherStoreError, match="and that is not in"):
        await check_not_moved(fleet.natty, other, first)


# --- the commands of docs/moving.md ----------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[4] / "docs" / "moving.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def typed(fleet, commands, **environment):
    """Run commands in a shell, in the folder of the archive; return what they print."""
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        commands,
        cwd=fleet.folder,
        env=settings_of(fleet.options, fleet.folder) | programs | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_the_pages_commands_copy_a_folder_and_delete_the_old_durable(fleet, first, configured):
    copy, _, remove = COMMANDS
    assert "10 stored, " in await typed(fleet, copy)
    async with running_here(Node(configured())) as node:
        await until(lambda: node.start.over)
    await typed(fleet, remove.replace("ORDERS", fleet.stream))
    names = (await fleet.natty.jetstream.request(f"CONSUMER.NAMES.{fleet.stream}"))["consumers"]
    assert not names


@pytest.mark.long
async def test_the_pages_commands_copy_a_folder_into_an_object_store(fleet, first, configured, s3):
    remote = {
        "RCLONE_CONFIG": "/notfound",
        "RCLONE_CONFIG_S3_TYPE": "s3",
        "RCLONE_CONFIG_S3_PROVIDER": "Other",
        "RCLONE_CONFIG_S3_ENV_AUTH": "true",
        "RCLONE_CONFIG_S3_ENDPOINT": s3.endpoint,
        "RCLONE_CA_CERT": str(s3.ca),
    }
    store = s3.url("orders")
    said = await typed(fleet, COMMANDS[1].replace("s3://lake/orders", f"'{store}'"), **s3.environment, **remote)
    assert "10 stored, " in said
    await fleet.publish([b"more"])
    moved = configured(store=store)
    await captured(fleet, moved, 11)
    assert (await check(fleet.natty, moved, open_store(store))).ok


def test_the_pages_new_archive_is_a_configuration(tmp_path):
    (tmp_path / "capture.toml").write_text(re.search(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1])
    config = load(tmp_path / "capture.toml", environment={})
    assert (config.archive, config.durable) == ("ORDERS_2", "capture_2")


@pytest.mark.long
async def test_a_node_acknowledges_nothing_into_a_folder_that_took_the_place_of_its_store(fleet):
    node = fleet.start("n1", fleet.configure(limits__max_age=0.2))
    await fleet.publish([b"{}"] * 10)
    await fleet.until_all_acked(10)
    away = fleet.store.with_name("away")
    fleet.store.rename(away)  # its disk is not mounted any more
    await FileStore(fleet.store).put("probe", b"")  # what `capture doctor` does: the folder has .tmp now
    await fleet.publish([b"{}"] * 10)
    await fleet.said("n1", "is another folder than before")
    state = await fleet.natty.jetstream.request(f"CONSUMER.INFO.{fleet.stream}.capture")
    assert state["ack_floor"]["stream_seq"] == 10
    assert [one.path for one in await FileStore(fleet.store).list()] == ["probe"]
    shutil.rmtree(fleet.store)
    away.rename(fleet.store)
    await fleet.until_all_acked(20)
    assert await fleet.stop(node) == 0

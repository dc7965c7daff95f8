import asyncio
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from full_disk import WAYS
from patient import PATIENCE

from capture.archive.identity import claim
from capture.errors import AlreadyStoredError, StoreUnreadableError
from capture.stores import FileStore
from capture.stores.file import PIECE_BYTES

FILL = """
    import asyncio, sys
    from capture.errors import StoreFullError
    from capture.stores import FileStore

    async def main(root):
        store = FileStore(root)
        await store.put("blocks/small", b"x" * 1000)
        try:
            for number in range(10_000):
                await store.put(f"blocks/{number}", b"y" * 50_000)
        except StoreFullError as error:
            print(error)
        listed = await store.list()
        assert await store.get("blocks/small") == b"x" * 1000
        assert all(one.bytes in (1000, 50_000) for one in listed), listed
        assert [one.name for one in (store.root / ".tmp").iterdir()] == []
        for one in listed:
            await store.delete(one.path)
        await store.put("blocks/again", b"z" * 50_000)
        print("stored again")

    asyncio.run(main(sys.argv[1]))
"""

WRITE = """
    import asyncio, sys
    from capture.stores import FileStore

    async def main(root):
        store = FileStore(root)
        for number in range(40):
            await store.put(f"blocks/{number}", bytes([number]) * 4_000_000)
            print(number, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main(sys.argv[1]))
"""


def python(script, *arguments):
    return [sys.executable, "-c", textwrap.dedent(script), *arguments]


@pytest.mark.parametrize("disk", WAYS)
def test_a_full_disk_is_said_in_one_sentence_leaves_no_half_and_works_again_when_there_is_room(tmp_path, disk):
    command = disk(tmp_path, 400_000, textwrap.dedent(FILL), tmp_path / "lake")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    sentence, again = done.stdout.splitlines()
    assert "is full (No space left on device;" in sentence
    assert "bytes free, while writing blocks/7): free space there" in sentence
    assert again == "stored again"


def test_a_file_that_is_larger_than_the_system_allows_is_a_full_store(tmp_path):
    limited = """
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        import asyncio
        from capture.errors import StoreFullError
        from capture.stores import FileStore
        store = FileStore(sys.argv[1])
        try:
            asyncio.run(store.put("a", b"x" * 50_000))
        except StoreFullError as error:
            print(error)
        asyncio.run(store.put("a", b"x" * 10_000))
        print([one.bytes for one in asyncio.run(store.list())])
    """
    done = subprocess.run(python(limited, str(tmp_path)), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "is full (File too large;" in done.stdout
    assert done.stdout.splitlines()[1] == "[10000]"
    assert list((tmp_path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.006])
def test_a_writer_that_is_killed_leaves_whole_objects_and_hidden_leftovers_only(tmp_path, delay):
    with subprocess.Popen(python(WRITE, str(tmp_path)), stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(3):
            acknowledged = int(writer.stdout.readline())
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
    store = FileStore(tmp_path)
    listed = asyncio.run(store.list())
    assert {f"blocks/{number}" for number in range(acknowledged + 1)} <= {one.path for one in listed}
    for one in listed:
        content = bytes([int(one.path.removeprefix("blocks/"))]) * 4_000_000
        assert asyncio.run(store.get(one.path)) == content
    leftovers = len(list((tmp_path / ".tmp").iterdir()))
    assert asyncio.run(store.remove_leftovers(0.0, time.time() + 60)) == leftovers
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_of_creators_in_several_processes_exactly_one_wins(tmp_path):
    create = """
        import asyncio, sys
        from capture.errors import AlreadyStoredError
        from capture.stores import FileStore

        async def main(root, name):
            won, store = 0, FileStore(root)
            for number in range(100):
                try:
                    await store.put(f"deep/{number % 7}/{number}", name.encode() * 1000)
                    won += 1
                except AlreadyStoredError:
                    pass
            print(won)

        asyncio.run(main(*sys.argv[1:]))
    """
    creators = [
        subprocess.Popen(python(create, str(tmp_path), name), stdout=subprocess.PIPE, text=True) for name in "abc"
    ]
    assert sum(int(one.communicate(timeout=2 * PATIENCE)[0]) for one in creators) == 100
    contents = {
        one.path: asyncio.run(FileStore(tmp_path).get(one.path)) for one in asyncio.run(FileStore(tmp_path).list())
    }
    assert len(contents) == 100
    assert all(content in (b"a" * 1000, b"b" * 1000, b"c" * 1000) for content in contents.values())


def test_writers_survive_that_another_process_removes_empty_folders(tmp_path):
    churn = """
        import asyncio, sys
        from capture.stores import FileStore

        async def main(root, name):
            store = FileStore(root)
            for number in range(150):
                await store.put(f"a/b/c/{name}{number}", b"x")
                await store.delete(f"a/b/c/{name}{number}")

        asyncio.run(main(*sys.argv[1:]))
    """
    writers = [subprocess.Popen(python(churn, str(tmp_path), name), stderr=subprocess.PIPE, text=True) for name in "ab"]
    for one in writers:
        assert one.communicate(timeout=2 * PATIENCE)[1] == ""
        assert one.returncode == 0


async def test_a_store_that_can_be_read_and_not_written_is_told_at_the_start_though_the_archive_is_there(tmp_path):
    await claim(FileStore(tmp_path), "a", "S", "today")
    await claim(FileStore(tmp_path), "a", "S", "today")
    (tmp_path / ".tmp").rmdir()
    (tmp_path / ".tmp").write_text("as good as read-only")
    with pytest.raises(StoreUnreadableError, match=r"check that .* permissions to read and write it"):
        await claim(FileStore(tmp_path), "a", "S", "today")


async def test_an_object_that_exists_is_refused_without_leaving_anything_behind(tmp_path):
    await FileStore(tmp_path).put("a", b"1")
    with pytest.raises(AlreadyStoredError):
        await FileStore(tmp_path).put("a", b"2")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".tmp", "a"]


async def test_a_folder_that_took_the_place_of_the_store_gets_no_object(tmp_path):
    root, away = tmp_path / "lake", tmp_path / "away"
    writer, reader = FileStore(root), FileStore(root)
    await writer.put("a", b"1")
    assert await reader.get("a") == b"1"
    root.rename(away)  # as a mount that was lost; somebody makes the folder, and a file in it
    await FileStore(root).put("probe", b"")
    for store in (writer, reader):
        with pytest.raises(StoreUnreadableError, match="is another folder than before, without a: mount its disk"):
            await store.put("b", b"2")
    assert [one.path for one in await FileStore(root).list()] == ["probe"]
    shutil.rmtree(root)
    away.rename(root)
    for number, store in enumerate((writer, reader)):
        await store.put(f"c{number}", b"3")


async def test_a_folder_with_the_same_objects_may_take_the_place_of_the_store(tmp_path):
    root, away = tmp_path / "lake", tmp_path / "away"
    store = FileStore(root)
    await store.put("a", b"1")
    root.rename(away)
    shutil.copytree(away, root)  # as a disk that was copied, or mounted again under another number
    await store.put("b", b"2")
    assert [one.path for one in await store.list()] == ["a", "b"]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
async def test_an_object_of_any_size_is_written_whole_from_memory_and_from_a_file(tmp_path, size):
    store, data, source = FileStore(tmp_path / "store"), random.Random(size).randbytes(size), tmp_path / "source"
    source.write_bytes(data)
    await store.put("blocks/memory", data)
    await store.put("blocks/file", source)
    assert await store.get("blocks/memory") == await store.get("blocks/file") == data

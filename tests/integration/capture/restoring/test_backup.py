"""Backups of the `nats` tool: its bytes are the server's own, and the server takes ours back."""

import asyncio
import json

import pyarrow as pa
import pytest
from archiving import store_all, sweep_once
from patient import NEVER, PATIENCE

import capture
from capture.archive import chain
from capture.archive.recording import Recording
from capture.config.load import load
from capture.errors import ConfigError, FormatError
from capture.formats.envelope import to_table
from capture.restoring.archive import ArchiveReader, ArchiveWriter, as_columns
from capture.restoring.backup import DATA, META, export_backup, import_backup
from capture.restoring.s2 import unpack
from capture.stores import open_store

CHUNK = 64 << 10


async def backup(natty, stream, folder):
    """Write a backup as the tool does: each chunk that the server sends is answered, an empty one is the end."""
    folder.mkdir()
    arrived = asyncio.Queue()
    inbox = natty.connection.new_inbox().decode()
    subscription = natty.connection.subscribe(inbox, lambda batch: [arrived.put_nowait(raw) for raw in batch.raw])
    asked = {"deliver_subject": inbox, "chunk_size": CHUNK, "no_consumers": False}
    meta = await natty.jetstream.request(f"STREAM.SNAPSHOT.{stream}", asked)
    with (folder / DATA[0]).open("wb") as file:
        async with asyncio.timeout(PATIENCE):
            while (raw := await arrived.get())[3]:
                file.write(raw[3])
                if raw[1]:
                    natty.connection.send(raw[1].decode(), b"")
    subscription.close()
    (folder / META).write_text(json.dumps(meta))


async def restore(natty, folder, name):
    """Restore a backup as the tool does: requests in order, an empty one is the end."""
    meta = json.loads((folder / META).read_text())
    meta["config"] |= {"name": name, "subjects": [f"{name}.>"]}
    answer = await natty.jetstream.request(f"STREAM.RESTORE.{name}", {key: meta[key] for key in ("config", "state")})
    data = next(folder / one for one in DATA if (folder / one).exists()).read_bytes()
    for start in range(0, len(data), CHUNK):
        said = await natty.connection.request(answer["deliver_subject"], data[start : start + CHUNK], timeout=PATIENCE)
        assert said[3] == b"", said[3]
    end = json.loads((await natty.connection.request(answer["deliver_subject"], b"", timeout=PATIENCE))[3])
    assert "error" not in end, end


async def dump(natty, stream):
    """Return every message of a stream, as it lies there."""
    info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
    last = info["state"]["last_seq"]
    read = (natty.jetstream.read(stream, sequence=sequence) for sequence in range(1, last + 1))
    return last, [one for one in await asyncio.gather(*read) if one is not None]


@pytest.fixture
async def stream(natty, natty_name):
    """A stream with messages of every kind, deletions, and a consumer that has acknowledged some."""
    name = natty_name("backup")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True)
    headers = [None, {"A": "1"}, {"A": ["1", "2", ""]}]
    async with natty.publisher(name, ack_timeout=PATIENCE, give_up=2 * PATIENCE) as publisher:
        for number in range(1, 601):
            payload = (b"", b'{"n": %d, "text": "the same once more"}' % number, bytes(range(256)) * 40)[number % 3]
            some = headers[number % 3] if number > 9 else None
            await publisher.publish(f"{name}.{number % 7}", payload, headers=some)
        await publisher.flush()
    for sequence in (1, 2, 77, 600):
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
    await natty.ensure_consumer(name, "worker", ack_policy="explicit")
    pull = natty.pull(name, "worker", max_messages=10)
    async for batch in pull:
        pull.ack(batch.replies)
        pull.finish(len(batch))
        pull.stop()
    return name


@pytest.fixture
def archive(tmp_path):
    def configure(name="lake", **settings):
        config = load(None, {"store": str(tmp_path / name), **settings}, environment={}, needs=("store",))
        return config, open_store(config.store)

    return configure


async def test_a_backup_becomes_an_archive_and_a_stream_again(natty, stream, archive, tmp_path):
    await backup(natty, stream, tmp_path / "backup")
    config, store = archive(decoder="json", partition="subject:1")
    moved = await import_backup(tmp_path / "backup", config, store)
    last, messages = await dump(natty, stream)
    assert (moved.stream, moved.messages, moved.last, moved.consumers) == (stream, len(messages), last, 1)
    recording = await chain.read(store, await chain.latest_offline(store, Recording), Recording)
    assert list(recording.find_deleted(stream)) == [77, 600]
    read = [one async for one in capture.read(config.store)]
    assert [(one.sequence, one.subject, one.header_block, one.payload) for one in read] == [
        (one.sequence, one.subject, one.header_block, one.data) for one in messages
    ]
    assert moved.messages == (await import_backup(tmp_path / "backup", config, store)).messages  # once more: the same
    assert len([one async for one in capture.read(config.store)]) == len(messages)

    named, _ = archive(stream=stream)
    exported = await export_backup(named, store, tmp_path / "exported")
    assert (exported.messages, exported.consumers) == (len(messages), 1)
    floor = (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.worker"))["ack_floor"]["stream_seq"]
    await natty.delete_stream(stream)
    copy = f"{stream}_copy"
    await restore(natty, tmp_path / "exported", copy)
    assert await dump(natty, copy) == (last, messages)
    async with asyncio.timeout(PATIENCE):
        restored = await natty.jetstream.request(f"CONSUMER.INFO.{copy}.worker")
    assert restored["ack_floor"]["stream_seq"] == floor >= 3


async def acknowledged_in_gaps(natty, stream, name):
    """Make a consumer of a priority group that was given 20 messages, and has acknowledged some of them."""
    settings = {"ack_policy": "explicit", "ack_wait": NEVER, "priority_policy": "overflow", "priority_groups": ["g"]}
    await natty.ensure_consumer(stream, name, **settings)
    arrived = asyncio.Queue()
    inbox = natty.connection.new_inbox().decode()
    subscription = natty.connection.subscribe(inbox, lambda batch: [arrived.put_nowait(raw) for raw in batch.raw])
    asked = json.dumps({"batch": 20, "expires": 10**9, "group": "g"}).encode()
    natty.connection.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", asked, reply=inbox.encode())
    async with asyncio.timeout(PATIENCE):
        given = [(await arrived.get())[1] for _ in range(20)]
        for place in (0, 1, 3, 5, 6, 7, 11, 19):
            await natty.connection.request(given[place].decode(), b"+ACK", timeout=PATIENCE)
    subscription.close()


async def described(natty, stream, folder):
    """Return what the server itself would write down of a stream: its levels, and each consumer's exact state."""
    await backup(natty, stream, folder)
    with (folder / DATA[0]).open("rb") as file:
        consumers = ArchiveReader(unpack(file)).consumers
    info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
    return info["config"]["metadata"], {
        one["config"]["name"]: (one["config"]["metadata"], one["state"]) for one in consumers
    }


async def test_single_acknowledgements_and_levels_survive_an_archive(natty, natty_name, archive, tmp_path):
    name = natty_name("acks")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_msg_ttl=True)
    for number in range(30):
        await natty.publish(f"{name}.a", b"%d" % number)
    await acknowledged_in_gaps(natty, name, "worker")
    pinned = {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": PATIENCE}
    await natty.ensure_consumer(name, "pinned", ack_policy="explicit", **pinned)
    before = await described(natty, name, tmp_path / "before")
    metadata, state = before[1]["worker"]
    assert (before[0]["_nats.req.level"], metadata["_nats.req.level"]) == ("1", "1")
    assert (len(state["pending"]), state["ack_floor"]["stream_seq"]) == (12, 2)

    config, store = archive(stream=name)
    await import_backup(tmp_path / "before", config, store)
    await export_backup(config, store, tmp_path / "exported")
    await natty.delete_stream(name)
    done = await capture.restore(natty, config.store)
    assert await described(natty, name, tmp_path / "restored") == before
    assert "consumers continue where they were when the backup was made" in "; ".join(done.not_kept)
    await restore(natty, tmp_path / "exported", f"{name}_copy")
    after = await described(natty, f"{name}_copy", tmp_path / "copied")
    assert (after[0]["_nats.req.level"], after[1]) == ("1", before[1])


async def test_a_position_that_contradicts_itself_is_not_restored_from_a_backup(natty, stream, archive, tmp_path):
    folder = tmp_path / "backup"
    await backup(natty, stream, folder)
    with (folder / DATA[0]).open("rb") as file:
        reader = ArchiveReader(unpack(file))
        rows = pa.concat_tables(as_columns(to_table(records)) for records in reader.messages(stream))
    (worker,) = reader.consumers
    worker["state"] = {
        "delivered": {"consumer_seq": 2800, "stream_seq": 550},
        "ack_floor": {"consumer_seq": 2721, "stream_seq": 0},
    }
    writer = ArchiveWriter(now_ns=1)
    (folder / DATA[0]).write_bytes(writer.begin(reader.state, [worker]) + writer.add(rows) + writer.end())
    config, store = archive(stream=stream)
    await import_backup(folder, config, store)
    await natty.delete_stream(stream)
    done = await capture.restore(natty, config.store)
    info = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.worker")
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (550, 0)
    assert "consumer worker can't be at the position that the server reported" in "; ".join(done.not_kept)


async def test_either_name_of_the_data_file_is_read_and_the_one_that_every_tool_restores_is_written(
    natty, stream, archive, tmp_path
):
    await backup(natty, stream, tmp_path / "backup")
    config, store = archive(stream=stream)
    moved = await import_backup(tmp_path / "backup", config, store)
    await export_backup(config, store, tmp_path / "exported")
    files = {one.name: one.read_bytes() for one in (tmp_path / "exported").iterdir()}
    assert files.keys() == {"backup.json", "stream.tar.s2"}  # newer tools refuse a folder with both names
    for number, name in enumerate(("stream.arc.s2", "stream.tar.s2")):
        folder = tmp_path / f"only{number}"
        folder.mkdir()
        (folder / META).write_bytes(files["backup.json"])
        (folder / name).write_bytes(files["stream.tar.s2"])
        assert (await import_backup(folder, *archive(f"lake{number}"))).messages == moved.messages


async def test_what_capture_stored_is_exported_as_the_server_would(natty, stream, archive, tmp_path):
    config, store = archive(stream=stream)
    await store_all(natty, config, store)
    await acknowledged_in_gaps(natty, stream, "gaps")
    await sweep_once(natty, config, store)
    exported = await export_backup(config, store, tmp_path / "exported")
    again = "consumer gaps gets up to 6 messages again that it has acknowledged, after sequence 4"  # 1 and 2 are gone
    assert again in exported.not_kept
    await restore(natty, tmp_path / "exported", f"{stream}_copy")
    assert await dump(natty, f"{stream}_copy") == await dump(natty, stream)
    with pytest.raises(ConfigError, match="is not empty: name a new folder"):
        await export_backup(config, store, tmp_path / "exported")
    await backup(natty, stream, tmp_path / "backup")
    with pytest.raises(ConfigError, match=f"captures stream {stream} already"):
        await import_backup(tmp_path / "backup", config, store)


async def test_a_damaged_backup_is_refused_in_a_sentence(natty, stream, archive, tmp_path):
    folder = tmp_path / "backup"
    await backup(natty, stream, folder)
    data = (folder / DATA[0]).read_bytes()
    middle = len(data) // 2
    wrong = {
        data[:-20]: "cut off",
        data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]: "damaged",
        b"PK" + data[2:]: "neither S2 nor framed Snappy",
        b"": "it is cut off",
    }
    for number, (changed, said) in enumerate(wrong.items()):
        (folder / DATA[0]).write_bytes(changed)
        config, store = archive(f"lake{number}")
        with pytest.raises(FormatError, match=said) as caught:
            await import_backup(folder, config, store)
        assert str(folder / DATA[0]) in str(caught.value)
    (folder / DATA[0]).unlink()
    with pytest.raises(ConfigError, match=r"there is no stream\.arc\.s2 or stream\.tar\.s2 in it"):
        await import_backup(folder, *archive("none"))
    (folder / META).write_text("{}")
    with pytest.raises(FormatError, match="is damaged"):
        await import_backup(folder, *archive("none"))
    with pytest.raises(ConfigError, match="is not a backup of the nats tool"):
        await import_backup(tmp_path / "nowhere", *archive("none"))


async def test_the_server_s_bytes_are_s2(natty, stream, tmp_path):
    await backup(natty, stream, tmp_path / "backup")
    data = (tmp_path / "backup" / DATA[0]).read_bytes()
    assert data.startswith(b"\xff\x06\x00\x00S2sTwO")
    with (tmp_path / "backup" / DATA[0]).open("rb") as file:
        assert b"".join(unpack(file)).startswith(b"NATSARC1")

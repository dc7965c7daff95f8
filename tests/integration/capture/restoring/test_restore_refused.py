"""What can't be restored is refused in one sentence; what fails in between leaves nothing behind."""

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from patient import PATIENCE, PATIENT
from restoring import Capturing, dumped, info, planned, restored, send

from capture.archive.sequences import Sequences
from capture.errors import CipherError, FormatError, RestoreError, RestoreRefusedError
from capture.restoring import pick, uptake
from capture.restoring.rebuild import restore_exactly
from natty import JetStreamError, Natty, StreamNotFoundError
from natty.errors import NoRespondersError
from natty.testing import NatsServer, ServerOptions

COUNT = 40
KEY = "ours:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.fixture(scope="module")
def small_server(natty_tls, nats_server_binary, tmp_path_factory):
    """A server with little room for streams, and for messages."""
    folder = tmp_path_factory.mktemp("small")
    room = f"jetstream {{ store_dir: {json.dumps(str(folder / 'jetstream'))}, max_file: 64KB }}"
    options = ServerOptions(name="small", jetstream=False, max_payload_bytes=8192, config=room)
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
async def captured(natty, natty_name, tmp_path):
    """A stream in several blocks; it is deleted from the server."""
    name = natty_name("refused")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path, partition="subject:2")
    for number in range(COUNT):
        await send(natty, f"{name}.{number % 4}", b"%d" % number * 100)
    await captured.capture()
    captured.before = await dumped(natty, name)
    await natty.delete_stream(name)
    return captured


def blocks_of(captured):
    return sorted(Path(captured.config.store, "blocks").rglob("*.parquet"))


async def nothing_there(natty, name):
    with pytest.raises(StreamNotFoundError):
        await info(natty, name)


async def test_an_existing_stream_is_never_touched(natty, captured):
    name = captured.stream
    await natty.ensure_stream(name, subjects=[f"{name}.other"])
    await send(natty, f"{name}.other", b"mine")
    before = await dumped(natty, name)
    with pytest.raises(RestoreRefusedError, match="an existing stream is never touched"):
        await restored(natty, captured)
    with pytest.raises(RestoreRefusedError, match="an existing stream is never touched"):
        await restored(natty, captured, again=True)
    assert await dumped(natty, name) == before


async def test_subjects_of_another_stream_are_found_before_anything_is_written(natty, captured):
    name = captured.stream
    await natty.ensure_stream(f"{name}_live", subjects=[f"{name}.1"])
    with pytest.raises(RestoreRefusedError, match=rf"subject {name}\.\* overlaps {name}\.1 of stream {name}_live"):
        await restored(natty, captured)
    await nothing_there(natty, name)
    await restored(natty, captured, name=f"{name}_copy", detached=True)
    state, found = await dumped(natty, f"{name}_copy")
    assert (state, found) == captured.before
    assert (await info(natty, f"{name}_copy"))["config"]["subjects"] == [f"{name}_copy"]


async def test_a_changed_a_missing_and_a_cut_object_stop_it_and_leave_nothing(natty, captured):
    last = blocks_of(captured)[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FormatError, match="was changed: its SHA-256 is not the recorded one"):
        await restored(natty, captured)
    await nothing_there(natty, captured.stream)
    last.write_bytes(whole[:-1])
    with pytest.raises(RestoreRefusedError, match="has another size than its record says"):
        await restored(natty, captured)
    last.unlink()
    with pytest.raises(RestoreRefusedError, match="is missing"):
        await restored(natty, captured)
    await nothing_there(natty, captured.stream)
    last.write_bytes(whole)
    await restored(natty, captured)
    assert await dumped(natty, captured.stream) == captured.before


async def test_a_missing_a_changed_and_a_newer_document_are_refused_by_name(natty, captured):
    folder = Path(captured.config.store)
    manifest = sorted((folder / "_manifest").iterdir())[-1]
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + b" ")
    with pytest.raises(RestoreRefusedError, match="was changed: its SHA-256 is not the one"):
        await restored(natty, captured)
    manifest.write_bytes(re.sub(rb'"format":\d+', b'"format":99', whole))
    with pytest.raises(RestoreRefusedError, match="has format 99; this version reads up to"):
        await restored(natty, captured, offline=True)
    manifest.unlink()
    with pytest.raises(RestoreRefusedError, match=r"_manifest/.* is missing"):
        await restored(natty, captured)
    await nothing_there(natty, captured.stream)


async def test_a_wrong_key_is_told_and_leaves_nothing(natty, natty_name, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPTURE_KEYS", KEY)
    name = natty_name("locked")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path, encrypt=True)
    await send(natty, f"{name}.a", b"secret")
    await captured.capture()
    await natty.delete_stream(name)
    monkeypatch.setenv("CAPTURE_KEYS", KEY.replace("AAEC", "BBEC"))
    with pytest.raises(CipherError, match="the given key 'ours' is not the one that it was encrypted with"):
        await restored(natty, captured)
    await nothing_there(natty, name)


async def test_an_unsigned_archive_is_refused_where_a_signature_is_demanded(natty, captured, tmp_path):
    public = tmp_path / "ours.pub"
    public.write_text("ours:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
    captured.config = msgspec.structs.replace(captured.config, public_key_file=str(public))
    with pytest.raises(RestoreRefusedError, match=r"not signed|no signature|unsigned"):
        await restored(natty, captured)


async def test_what_is_stopped_in_between_leaves_nothing(natty, captured, monkeypatch):
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(*given, **options):
        async for table in pick.rows_of(*given, **options):
            yield table.slice(0, 1)
            begun.set()
            await release.wait()

    monkeypatch.setattr("capture.restoring.rebuild.rows_of", slow)
    running = asyncio.create_task(restored(natty, captured))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        while True:
            with contextlib.suppress(JetStreamError):
                half = (await info(natty, captured.stream))["config"]
                break
            await asyncio.sleep(0.02)
    assert half["subjects"][0].startswith(uptake.HIDDEN)  # nobody can publish into it
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_there(natty, captured.stream)


async def test_after_a_failure_the_server_waits_for_nothing_any_more(natty, captured, monkeypatch):
    last, uploads, begin = blocks_of(captured)[-1], [], uptake._Chunks.__init__
    last.write_bytes(last.read_bytes()[:-1] + b"?")

    def noted(self, natty, subject):
        uploads.append(subject)
        begin(self, natty, subject)

    monkeypatch.setattr(uptake._Chunks, "__init__", noted)
    with pytest.raises(FormatError):
        await restored(natty, captured)
    with pytest.raises(NoRespondersError):
        await natty.connection.request(uploads[0])


async def test_what_an_interrupted_restore_left_is_told_and_removed_when_asked_to(natty, captured):
    name = captured.stream
    left = {"name": name, "subjects": [f"{uptake.HIDDEN}x"], "metadata": {uptake.MARK: "x"}}
    await natty.jetstream.request(f"STREAM.CREATE.{name}", left)
    with pytest.raises(RestoreRefusedError, match=r"was begun and is not finished.*--again"):
        await restored(natty, captured)
    await restored(natty, captured, again=True)
    assert await dumped(natty, name) == captured.before
    assert uptake.MARK not in (await info(natty, name))["config"]["metadata"]


async def test_an_archive_whose_objects_hold_less_than_their_records_say_is_refused(natty, captured, monkeypatch):
    plan = await planned(natty, captured)
    more = replace(plan, wanted=plan.wanted | Sequences.from_range(COUNT + 1, COUNT + 2), last=COUNT + 2)
    with pytest.raises(RestoreError, match="hold 40 of 42 messages that their records name"):
        await restore_exactly(natty, more, captured.store)
    await nothing_there(natty, captured.stream)


async def test_a_server_without_room_refuses_and_nothing_is_left(natty, captured, natty_name, tmp_path, small_server):
    async with Natty(**small_server.connect_options(), **PATIENT) as small:
        large = natty_name("large")
        await natty.ensure_stream(large, subjects=[f"{large}.*"])
        much = Capturing(natty, large, tmp_path)
        for _ in range(20):
            await send(natty, f"{large}.a", b"x" * 5000)
        await send(natty, f"{large}.a", b"x" * 9000)
        await much.capture()
        with pytest.raises(RestoreError, match=r"insufficient storage|exceeds maximum"):
            await restored(small, much)
        await nothing_there(small, large)
        with pytest.raises(RestoreError, match="exceeds maximum payload size"):
            await restored(small, much, start=21)
        await nothing_there(small, large)
        await restored(small, captured)
        assert await dumped(small, captured.stream) == captured.before


async def test_limits_of_the_account_are_looked_at_before_anything_is_written(
    captured, natty_tls, nats_server_binary, tmp_path
):
    account = "{ jetstream: { max_file: 2KB, max_streams: 9 }, users: [{ user: small, password: small }] }"
    config = f"accounts {{ SMALL: {account} }}\nno_auth_user: small"
    with NatsServer(
        ServerOptions(config=config), folder=tmp_path / "account", tls_files=natty_tls, binary=nats_server_binary
    ) as server:
        async with Natty(**server.connect_options(), **PATIENT) as small:
            with pytest.raises(
                RestoreRefusedError, match=r"the account may store 2,048 bytes \(storage\), 0 are used, and"
            ):
                await restored(small, captured)
            await nothing_there(small, captured.stream)


async def test_what_is_only_in_csv_is_named_and_the_rest_is_restored(natty, natty_name, tmp_path):
    name = natty_name("csv")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    captured = Capturing(natty, name, tmp_path, format="csv")
    await send(natty, f"{name}.a", b'{"n":1}')
    await captured.capture()
    captured.config = msgspec.structs.replace(captured.config, format="parquet")
    await send(natty, f"{name}.a", b'{"n":2}')
    await captured.capture()
    before = await dumped(natty, name)
    await natty.delete_stream(name)
    plan = await planned(natty, captured)
    assert plan.not_kept[0].startswith("1 message (1) is only in blocks/")
    await restored(natty, captured)
    assert (await dumped(natty, name))[1] == {2: before[1][2]}


@pytest.mark.long
async def test_a_store_that_is_silent_for_longer_than_a_server_waits_stops_nothing(natty, captured, monkeypatch):
    async def slow(*given, **options):
        async for table in pick.rows_of(*given, **options):
            await asyncio.sleep(7)
            yield table

    monkeypatch.setattr("capture.restoring.rebuild.rows_of", slow)
    await restored(natty, captured)
    assert await dumped(natty, captured.stream) == captured.before

"""Mirrors and streams with sources: as a whole they go on where they were; a part of one is a plain stream."""

import asyncio

import pytest
from patient import PATIENCE, PATIENT
from restoring import Capturing, configured, dumped, info, planned, restored, send
from servers import old_server

from capture.restoring.uptake import upload
from natty import Natty
from natty.testing import NatsServer

COUNT = 6


@pytest.fixture
async def origin(natty, natty_name):
    name = natty_name("origin")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    for number in range(COUNT):
        await send(natty, f"{name}.a", b"%d" % number)
    return name


async def holding(natty, stream, count):
    """Wait until a stream has so many messages; return their payloads."""
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, stream))["state"]["messages"] < count:
            await asyncio.sleep(0.05)
    return [one["data"] for one in (await dumped(natty, stream))[1].values()]


async def fed(natty, origin, name, folder, **config):
    """Make a stream that takes its messages from the origin, and capture it; return what captured it."""
    await natty.jetstream.request(f"STREAM.CREATE.{name}", {"name": name, "storage": "file", **config})
    await holding(natty, name, COUNT)
    captured = Capturing(natty, name, folder)
    await captured.capture()
    return captured


@pytest.mark.parametrize("kind", ["mirror", "sources"])
async def test_as_a_whole_it_goes_on_behind_its_last_message(natty, origin, natty_name, tmp_path, kind, monkeypatch):
    name = natty_name(kind)
    origins = {"mirror": {"name": origin}} if kind == "mirror" else {"sources": [{"name": origin}]}
    captured = await fed(natty, origin, name, tmp_path, **origins)
    before, config = await dumped(natty, name), await configured(natty, name)
    await natty.delete_stream(name)
    for number in range(COUNT, 2 * COUNT):
        await send(natty, f"{origin}.a", b"%d" % number)  # while the stream is lost, its origin goes on

    async def uploaded(*given):
        await upload(*given)
        if kind == "mirror":  # it takes what comes from its origin before anybody looks at it
            await holding(natty, name, 2 * COUNT)

    monkeypatch.setattr("capture.restoring.rebuild.upload", uploaded)
    done = await restored(natty, captured)
    assert done.messages == COUNT
    assert "no longer copies from" not in "; ".join(done.not_kept)
    wanted = [one["data"] for one in (await dumped(natty, origin))[1].values()]
    assert await holding(natty, name, 2 * COUNT) == wanted
    after = await dumped(natty, name)
    assert {sequence: after[1][sequence] for sequence in before[1]} == before[1]
    assert after[0]["last_seq"] == 2 * COUNT
    assert await configured(natty, name) == config


@pytest.mark.parametrize("kind", ["mirror", "sources"])
async def test_a_part_of_it_is_a_plain_stream_and_the_plan_says_so(natty, origin, natty_name, tmp_path, kind):
    name = natty_name(kind)
    origins = {"mirror": {"name": origin}} if kind == "mirror" else {"sources": [{"name": origin}]}
    captured = await fed(natty, origin, name, tmp_path, **origins)
    before = (await dumped(natty, name))[1]
    await natty.delete_stream(name)
    plan = await planned(natty, captured, to_sequence=3)
    assert plan.not_kept[0].startswith(f"the stream no longer copies from {origin}: after a part of the stream")
    await restored(natty, captured, to_sequence=3)
    config = (await info(natty, name))["config"]
    assert (config.get("mirror"), config.get("sources"), config["subjects"]) == (None, None, [name])
    assert await send(natty, name, b"published") == 4
    found = (await dumped(natty, name))[1]
    assert [found[sequence] for sequence in (1, 2, 3)] == [before[sequence] for sequence in (1, 2, 3)]
    assert list(found) == [1, 2, 3, 4]


async def test_an_older_server_could_not_tell_where_to_go_on(natty, origin, natty_name, natty_tls, tmp_path):
    captured = await fed(natty, origin, natty_name("sources"), tmp_path, sources=[{"name": origin}])
    program = old_server("2.14.6")
    with NatsServer(folder=tmp_path / "older", tls_files=natty_tls, binary=program) as server:
        async with Natty(**server.connect_options(), **PATIENT) as older:
            done = await restored(older, captured)
            assert (done.kept, (await info(older, captured.stream))["config"].get("sources")) == (COUNT, None)
            why = "this server would copy all messages again. It is a plain stream"
            said = f"the stream no longer copies from {origin}: {why}"
            assert said in done.not_kept

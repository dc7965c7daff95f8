"""Lists of streams and consumers: every page, with as few requests as there are pages, and together after the first."""

import asyncio

import pytest

from natty import Natty
from natty.errors import StreamNotFoundError
from natty.streams.listing import all_consumers, all_streams, consumer_names, stream_names
from natty.testing import NatsServer

STREAMS = 600  # three pages of 256


@pytest.fixture(scope="module")
def crowded(natty_tls, nats_server_binary, tmp_path_factory):
    """A server with many streams; the first of them has consumers."""
    folder = tmp_path_factory.mktemp("crowded")
    with NatsServer(folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:

        async def fill():
            async with Natty(**server.connect_options(), timeout=60.0) as natty, asyncio.TaskGroup() as group:
                for number in range(STREAMS):
                    subjects = [f"{('even', 'odd')[number % 2]}.{number}"]
                    config = {"name": f"S{number:03}", "subjects": subjects, "storage": "memory"}
                    group.create_task(natty.jetstream.request(f"STREAM.CREATE.S{number:03}", config))

        asyncio.run(fill())
        yield server


@pytest.fixture
async def natty(crowded):
    async with Natty(**crowded.connect_options(), timeout=60.0) as client:
        yield client


@pytest.fixture
def asked(natty, monkeypatch):
    """The most requests that were under way at the same time, for each offset that was asked for."""
    under_way, most = [], []
    request = natty.jetstream.request

    async def counted(subject, body=None, **options):
        under_way.append(body["offset"])
        most.append(len(under_way))
        try:
            return await request(subject, body, **options)
        finally:
            under_way.remove(body["offset"])

    monkeypatch.setattr(natty.jetstream, "request", counted)
    return most


async def test_pages_are_asked_for_together_after_the_first(natty, asked):
    listing = await all_streams(natty.jetstream)
    assert [one["config"]["name"] for one in listing.found] == [f"S{number:03}" for number in range(STREAMS)]
    assert listing.missing == []
    assert asked == [1, 1, 2]


async def test_a_page_is_enough_for_names(natty, asked):
    assert await stream_names(natty.jetstream) == [f"S{number:03}" for number in range(STREAMS)]
    assert asked == [1]


async def test_only_streams_whose_subjects_overlap_are_told_on_every_page(natty, asked):
    odd = [f"S{number:03}" for number in range(1, STREAMS, 2)]
    found = (await all_streams(natty.jetstream, subject="odd.*")).found
    assert [one["config"]["name"] for one in found] == odd
    assert asked == [1, 1]
    assert await stream_names(natty.jetstream, subject="odd.*") == odd
    assert await stream_names(natty.jetstream, subject="odd.7") == ["S007"]
    assert await stream_names(natty.jetstream, subject="nothing") == []


async def test_consumers_are_listed_page_by_page(natty):
    durables = [f"c{number:03}" for number in range(300)]
    async with asyncio.TaskGroup() as group:
        for durable in durables:
            group.create_task(natty.create_consumer("S000", durable))
    assert [one["name"] for one in (await all_consumers(natty.jetstream, "S000")).found] == durables
    assert await consumer_names(natty.jetstream, "S000") == durables
    assert (await all_consumers(natty.jetstream, "S001")).found == []
    with pytest.raises(StreamNotFoundError):
        await consumer_names(natty.jetstream, "NOWHERE")

"""`natty stream mirror`: made, watched and promoted from the command line, and one sentence for what can't be."""

import asyncio
import json

import pytest
from patient import PATIENCE


@pytest.fixture
def shell(quick_shell):
    return quick_shell


def mirror(shell, *words):
    return shell.natty("stream", "mirror", *words)


async def copied(natty, stream, count):
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"] < count:
            await asyncio.sleep(0.05)


def test_a_mirror_is_made_watched_and_promoted(shell, served, make_stream, natty_name):
    origin, copy = make_stream(natty_name("origin"), 10), natty_name("copy")
    assert mirror(shell, "add", copy, origin, "--max-age", "7d").out == f"{copy} mirrors {origin}\n"
    assert mirror(shell, "add", copy, origin, "--max-age", "7d").status == 0
    served(lambda natty: copied(natty, copy, 10))
    told = json.loads(mirror(shell, "info", copy, "--json").out)
    assert (told["copying"][0]["origin"], told["copying"][0]["lag"]) == (origin, 0)
    listed = json.loads(mirror(shell, "ls", "--json").out)
    assert [one["kind"] for one in listed if one["stream"] == copy] == ["mirror"]
    assert origin in mirror(shell, "ls").out
    assert f"mirror {copy} of {origin}" in mirror(shell, "info", copy).out
    assert mirror(shell, "promote", copy).complaint.endswith("no terminal to ask on: give --force")
    assert f"stream {origin} takes {origin}.*" in mirror(shell, "promote", copy, "--force").complaint
    served(lambda natty: natty.delete_stream(origin))
    done = mirror(shell, "promote", copy, "--force")
    assert done.out == f"{copy} is now an independent stream, on {origin}.*\n"
    assert served(lambda natty: natty.publish(f"{origin}.eu", b"x")).seq == 11


def test_a_gathering_stream_is_made(shell, make_stream, natty_name):
    one, other, gathered = make_stream(natty_name("one"), 1), make_stream(natty_name("other"), 1), natty_name("all")
    assert mirror(shell, "gather", gathered, one, other).out == f"{gathered} gathers from {one}, {other}\n"


def test_bad_input_ends_in_one_sentence(shell, make_stream, natty_name):
    origin, copy = make_stream(natty_name("origin")), natty_name("copy")
    wrong = {
        ("add", copy, f"{origin}x"): (1, f"did you mean {origin}"),
        ("add", "a.b", origin): (1, "'.' at character 2"),
        ("add", copy, origin, "--domain", "nowhere"): (1, "no server answers on $JS.nowhere.API"),
        ("add", copy, origin, "--start-time", "yesterday"): (1, "RFC 3339"),
        ("add", copy, origin, "--start-seq", "1", "--start-time", "2026-01-01T00:00:00Z"): (1, "contradict each other"),
        ("add", copy, origin, "--replicas", "3"): (1, "replicas"),
        ("info", origin): (1, f"stream {origin} is not a mirror"),
        ("promote", origin, "--force"): (1, f"stream {origin} is not a mirror"),
        ("promote", copy, "--force"): (1, f"there is no stream {copy}"),
    }
    started = {words: shell.start("natty", "stream", "mirror", *words) for words in wrong}
    for words, (status, complaint) in wrong.items():
        done = shell.finish(started[words])
        assert (done.status, complaint in done.complaint) == (status, True), done.err
    usage = mirror(shell, "add", copy, origin, "--transform", "a")
    assert (usage.status, "write FILTER=SUBJECT" in usage.err) == (2, True)

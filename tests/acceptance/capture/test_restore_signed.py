"""A signed archive that somebody has touched is not restored: one sentence, exit status 1, nothing on the server."""

import asyncio
from pathlib import Path

import pytest
from archived import ARCHIVE, KEYS, SIGNER, STREAM, Archived
from commands import printed

from capture.archive.signing import SigningKeys, split

STRANGER = SigningKeys({"mine": bytes(range(1, 33))})


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def archive(tmp_path):
    """A signed archive in a folder: blocks, a table, what was recorded."""

    async def make():
        archived = await Archived(SIGNER, folder=tmp_path / "archive").make()
        archived.now += 10.0
        state = {"messages": 8, "bytes": 1000, "first_seq": 1, "last_seq": 9}
        await archived.record(state=state, deleted=[5], config={"name": STREAM, "subjects": ["orders.>"]})

    asyncio.run(make())
    return tmp_path / "archive"


@pytest.fixture
def restore(shell, archive, tmp_path, natty_name):
    def run(keys):
        public, name = tmp_path / "public", natty_name("signed")
        public.write_text("".join(f"{one}:{key}\n" for one, key in keys.public.lines().items()))
        return name, shell.capture("restore", archive, "--public-key", public, "--as", name, "--detached")

    return run


def newest(archive, folder):
    return sorted((archive / folder).iterdir())[-1]


def flipped(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def resigned(path):
    """What somebody writes who has a key of their own, under the same name."""
    plain = split(path.read_bytes())[0].replace(b"node", b"NODE")
    path.write_bytes(STRANGER.sign(ARCHIVE, f"{path.parent.name}/{path.name}", plain))


def unsigned(path):
    path.write_bytes(split(path.read_bytes())[0])


def test_what_nobody_has_touched_is_restored(restore, served):
    name, done = restore(KEYS)
    assert "8 messages of ORDERS" in printed(done)
    served(lambda natty: natty.delete_stream(name))


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        (lambda archive: max(archive.glob("blocks/**/*.parquet")), flipped, "was changed: its SHA-256 is not"),
        (lambda archive: newest(archive, "_manifest"), flipped, "is damaged"),
        (lambda archive: newest(archive, "_manifest"), unsigned, "is not signed"),
        (lambda archive: newest(archive, "_manifest"), resigned, "signature"),
        (lambda archive: newest(archive, "_recorded"), resigned, "signature"),
    ],
    ids=["an object", "a manifest", "a manifest without a signature", "signed by a stranger", "the recording"],
)
def test_what_somebody_has_touched_is_refused(restore, served, archive, path, change, said):
    touched: Path = path(archive)
    change(touched)
    name, done = restore(KEYS)
    assert done.status == 1
    assert f"{touched.relative_to(archive)}" in done.complaint
    assert said in done.complaint
    assert name not in (served(lambda natty: natty.jetstream.request("STREAM.NAMES"))["streams"] or [])


def test_with_the_public_key_of_somebody_else_nothing_is_restored(restore):
    _, done = restore(STRANGER)
    assert done.status == 1
    assert "signature" in done.complaint

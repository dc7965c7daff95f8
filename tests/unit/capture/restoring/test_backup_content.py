"""Backups that somebody else wrote: whatever stands in them, an import takes them or refuses them in a sentence."""

import copy
import json
from uuid import uuid4

import pyarrow as pa
import pytest

from capture.archive.sequences import WIDEST
from capture.config.load import load
from capture.errors import FormatError
from capture.restoring.archive import COLUMNS, ArchiveWriter, varint
from capture.restoring.backup import DATA, META, export_backup, import_backup
from capture.stores import MemoryStore

STATE = {"messages": 3, "bytes": 300, "first_seq": 2, "first_ts": "2026-11-22T18:17:54.02Z", "last_seq": 5}
CONSUMER = {
    "config": {"name": "w", "durable_name": "w", "ack_policy": "explicit", "metadata": {"a": "b"}, "num_replicas": 1},
    "state": {
        "delivered": {"consumer_seq": 4, "stream_seq": 5},
        "ack_floor": {"consumer_seq": 1, "stream_seq": 2},
        "pending": {"3": {"Sequence": 2, "Timestamp": 1_795_371_474_031_124_375}},
        "redelivered": {"3": 1},
    },
}
CONFIG = {
    "name": "S",
    "subjects": ["s.>"],
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
    "max_age": 0,
    "metadata": {"_nats.req.level": "1"},
    "sources": [{"name": "X"}],
}
WHOLE = {"meta": {"config": CONFIG, "state": STATE}, "state": STATE, "consumer": CONSUMER}
NO_NAMES = ["../../../evil", "a/b", "..", "", "a b", "a.b", "*", "a\\b", "\x00", "\x1b[2J", "n" * 256]
WRONG = [None, 7, -3, 2**63, 10**30, 1.5, True, "", "x", [], [1], {}, {"x": 1}, {"1": {}}]
ABSENT = object()


class Archive(ArchiveWriter):
    """An archive whose first texts are whatever they are."""

    def __init__(self, whole):
        super().__init__(now_ns=1)
        state = whole["state"]
        told = {**state, "consumer_count": 1} if isinstance(state, dict) else state
        self.texts = self._text(b"state.json", told) + self._text(b"consumers/w", whole["consumer"])

    def start(self, more=b""):
        return self._compress(b"NATSARC1" + self.texts + more)


def written(folder, whole, sequences=(2, 3, 5)):
    """Write a backup with three messages."""
    folder.mkdir()
    (folder / META).write_bytes(json.dumps(whole["meta"]).encode())
    columns = [list(sequences), [1, 2, 3], [b"s.a"] * 3, [None] * 3, [b"x"] * 3]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    archive = Archive(whole)
    (folder / DATA[0]).write_bytes(archive.start() + archive.add(pa.table(arrays, schema=COLUMNS)) + archive.end())
    return folder


@pytest.fixture
def places(tmp_path):
    """Return what makes a configuration and its new store, and what names a new folder."""

    def made():
        store = MemoryStore(f"backup-{uuid4().hex}")
        return load(None, {"store": store.url, "stream": "S"}, environment={}), store

    return made, lambda: tmp_path / uuid4().hex


async def attempt(places, whole):
    """Import a backup, and export it again; return the sentence that refused it, or "". Nothing else may happen."""
    made, folder = places
    config, store = made()
    try:
        await import_backup(written(folder(), whole), config, store)
    except FormatError as error:
        assert await store.list("") == []
        return str(error)
    if whole["meta"]["config"]["name"] == config.stream:
        await export_backup(config, store, folder())
    return ""


def paths_of(document, at=()):
    """Yield the path of every value in a document."""
    yield at
    if isinstance(document, dict | list):
        for name, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from paths_of(value, (*at, name))


def changed(path, value):
    """Return the backup with another value at a path, or without one."""
    whole = copy.deepcopy(WHOLE)
    place = whole
    for name in path[:-1]:
        place = place[name]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


PATHS = [path for path in paths_of(WHOLE) if len(path) > 1]
RELIED_ON = {"first_seq", "last_seq", "delivered", "subjects", "pending", "stream_seq", "Sequence", "retention"}


async def test_a_sound_backup_is_taken(places):
    assert await attempt(places, WHOLE) == ""


@pytest.mark.parametrize("name", NO_NAMES)
async def test_a_name_that_no_server_takes_is_refused_before_anything_is_written(places, name):
    assert "stream" in await attempt(places, changed(("meta", "config", "name"), name))
    without = changed(("consumer", "config", "durable_name"), "")
    without["consumer"]["config"]["name"] = name
    assert "consumer" in await attempt(places, without)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
async def test_wrong_values_anywhere_are_taken_or_refused_in_a_sentence(places, path):
    refused = [await attempt(places, changed(path, value)) for value in (*WRONG, ABSENT)]
    if path[-1] in RELIED_ON and path[:2] != ("meta", "state"):
        assert sum(map(bool, refused)) > 5


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("state", "first_seq"), ABSENT, "missing required field `first_seq`"),
        (("state", "last_seq"), 10**18, f"an import takes {WIDEST:,} at most"),
        (("state",), [], "Expected `object`"),
        (("consumer", "state"), ABSENT, "missing required field `state`"),
        (("meta", "config", "metadata"), 5, "Expected `object | null`, got `int`"),
    ],
)
async def test_the_sentence_says_what_is_wrong(places, path, value, said):
    assert said in await attempt(places, changed(path, value))


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"config":' * 50_000, b'{"config": {"name": "\\ud800"}}', b"\xff", b""]
)
async def test_a_description_that_can_t_be_decoded_is_refused(places, text):
    made, folder = places
    backup = written(folder(), WHOLE)
    (backup / META).write_bytes(text)
    config, store = made()
    with pytest.raises(FormatError, match=r"backup\.json is damaged"):
        await import_backup(backup, config, store)
    assert await store.list("") == []


async def test_a_consumer_that_is_nested_without_end_is_refused(places):
    made, folder = places
    backup, archive = written(folder(), WHOLE), Archive(WHOLE)
    deep = b"[" * 100_000
    entry = archive._text(b"consumers/w", "")[:-2]
    head = entry.index(b"consumers/w")
    archive.texts = archive._text(b"state.json", {**STATE, "consumer_count": 1}) + entry[: head - 1]
    archive.texts += varint(len(deep)) + b"consumers/w" + deep
    (backup / DATA[0]).write_bytes(archive.start() + archive.end())
    with pytest.raises(FormatError, match="in it is damaged"):
        await import_backup(backup, *made())


async def test_a_sequence_that_no_server_gives_is_refused(places):
    made, folder = places
    backup, archive = written(folder(), WHOLE), Archive(WHOLE)
    entry = b"".join(map(varint, (3, 2, 2**63, 0, 1))) + b"s.ax"
    (backup / DATA[0]).write_bytes(archive.start(entry) + archive.end())
    with pytest.raises(FormatError, match="sequence 9223372036854775808 follows 0: it is damaged"):
        await import_backup(backup, *made())

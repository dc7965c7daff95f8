from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from capture_settings import NAMED, no_settings_of_this_machine  # noqa: F401
from secret import write_secret

from capture.cli.config import limits, problems, redact_value
from capture.config.load import gather_settings, load
from capture.errors import CaptureError
from capture.node.node import Node
from natty import NattyError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "capture.toml"


def found(file: Path, text: str, flags: dict[str, Any] | None = None, **environment: str) -> list[str]:
    file.write_text(text)
    return [
        one.replace(f"{file.parent}/", "") for one in problems(gather_settings(file, flags, environment=environment))
    ]


@pytest.mark.parametrize(
    "setting",
    [
        {"stream": "a.b"},
        {"durable": "a.b"},
        {"group": "a.b"},
        {"member": "a b"},
        {"public_key_file": "nowhere"},
        {"public_key_file": "empty"},
        {"signing_key_file": "empty"},
    ],
    ids=str,
)
def test_a_node_refuses_at_its_start_what_the_check_refuses(
    file: Path, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    write_secret(file.parent / "empty", "")
    flags = {"stream": "S", "store": "lake", "group": "g", **setting}
    assert found(file, "", flags)
    with pytest.raises((CaptureError, NattyError)):
        Node(load(file, flags, environment={}))


def test_a_check_misses_what_has_no_default(file: Path) -> None:
    said = "no {0} is named: give --{0}, CAPTURE_{1} or {0} in capture.toml"
    assert found(file, "") == [said.format("stream", "STREAM"), said.format("store", "STORE")]


def test_a_check_finds_everything_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "broken_decoder.py").write_text("def decode(:")
    monkeypatch.syspath_prepend(file.parent)
    text = """
stream = "a b"
archive = "a b"
strem = 1
decoder = "broken_decoder:decode"
partition = "subject"
compression = "lzma"
key_file = "nowhere.keys"
[limits]
max_age = "soon"
[limitz]
a = 1
b = 2
[nats]
server = "nats://user:secret@host"
"""
    said = found(file, text)
    assert said == [
        "capture.toml: there is no setting `strem` in line 4; did you mean `stream`?",
        "capture.toml: `limits.max_age` must be a number, not text in line 10",
        "capture.toml: there is no setting `limitz` in line 12; did you mean `limits`?",
        "no store is named: give --store, CAPTURE_STORE or store in capture.toml",
        "stream name 'a b': ' ' at character 2 is not allowed (stream: file capture.toml, line 2)",
        "archive 'a b' can't name an election: 'capture.a b' is not a key: write letters, digits and - / _ = with"
        " dots between (archive: file capture.toml, line 3)",
        "the decoder 'broken_decoder:decode' can't be loaded: SyntaxError: invalid syntax (broken_decoder.py, line 1)"
        " (decoder: file capture.toml, line 5)",
        "subject: needs the number of a token, counted from 0, as in subject:1; not ''"
        " (partition: file capture.toml, line 6)",
        "Parquet has no compression 'lzma'; known are none, gzip, snappy, zstd"
        " (compression: file capture.toml, line 7)",
        "the key file nowhere.keys can't be read: No such file or directory (key_file: file capture.toml, line 8)",
        "capture.toml: there is no setting server in nats in line 15; did you mean `servers`?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('store = "ftp://x"', "ftp:// is not a kind of store that this version supports"),
        ('store = "s3://key:secret@lake"', "s3://lake contains credentials"),
        ('store = "lake"\nencrypt = true', "encrypt is on and there is no key"),
        ('store = "lake"\nflatten = "os:sep"\nformat = "csv"', "the flatten 'os:sep' is not a function but str"),
        ('store = "lake"\nack_wait = 9', "max_age 30.0 s must be below the consumer's ack_wait 9.0 s"),
        ('store = "lake"\n[nats]\ntls_ca = "nowhere.pem"', "The CA file nowhere.pem does not exist"),
        ('store = "lake"\n[nats]\nservers = "http://h"', "http://h: only nats:// and tls:// are supported"),
        ('store = "lake"\n[nats]\ncontext = "/nowhere.json"', "nats context '/nowhere.json' can't be read"),
        ('store = "lake"\ndurable = "a b"', "durable name 'a b': ' ' at character 2 is not allowed"),
    ],
)
def test_a_check_tries_what_a_node_starts_with(file: Path, text: str, said: str) -> None:
    (one,) = found(file, f'stream = "S"\n{text}')
    assert one.startswith(said)
    assert "file capture.toml, line" in one
    assert "key:secret" not in one


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("decoder", ""),
        ("partition", "partitioner"),
        ("layout", ""),
        ("format", "writer"),
        ("flatten", ""),
        ("store", ""),
    ],
)
def test_a_coroutine_function_is_refused_where_nothing_awaits_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, setting: str, what: str
) -> None:
    (file.parent / "asynchronous.py").write_text("async def later(*given): pass\n")
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.delitem(sys.modules, "asynchronous", raising=False)
    given = {"stream": "S", "store": "lake", "format": "csv", setting: "asynchronous:later"}
    (one,) = found(file, "".join(f'{name} = "{value}"\n' for name, value in given.items()))
    assert one.startswith(f"the {what or setting} 'asynchronous:later' is `async def`, and capture does not await it")
    assert found(file, 'stream = "S"\nstore = "lake"\non_store_complete = "asynchronous:later"') == []


WRITER = """
class Writer:
    format = "lines"
    def __init__(self, decode): pass
    {write}
"""


@pytest.mark.parametrize(
    ("write", "problem", "note"),
    [
        ("def write(self, block): return b' '.join([b'', *block.records.payloads])", "", ""),
        ("async def write(self, block): return b'x'", "write of the writer Writer is `async def`", ""),
        ("def write(self, block): return 'text'", "write of the writer Writer returned str, not bytes", ""),
        ("def write(self, block): return b''", "", "the writer Writer returned no bytes for 1 message"),
        ("def write(self, block): return block.message", "", "the writer Writer failed on 1 message: AttributeErr"),
    ],
)
def test_a_check_and_a_node_try_the_users_writer(
    file: Path, monkeypatch: pytest.MonkeyPatch, write: str, problem: str, note: str
) -> None:
    (file.parent / "own_writer.py").write_text(WRITER.format(write=write))
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.delitem(sys.modules, "own_writer", raising=False)
    text = 'stream = "S"\nstore = "lake"\nformat = "own_writer:Writer"'
    said = found(file, text)
    assert [one.startswith(problem) for one in said] == ([True] if problem else [])
    if problem:
        with pytest.raises(CaptureError, match=problem):
            Node(load(file, {}, environment={}))
        return
    Node(load(file, {}, environment={}))
    begin = "`check_writer` finds a fault in own_writer:Writer: one plain message: "
    notes = [one for one in limits(load(file, {}, environment={})) if "check_writer" in one]
    assert [one.startswith(begin + note) for one in notes] == ([True] if note else [])


KEY = "a2V5" * 10 + "key="
SEED = "SUA" + "B2C3D4E5" * 7
PEM = "PRIVATE KEY"


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("nats.password", "p", "***"),
        ("nats.token", "p", "***"),
        ("nats.user", "p", "***"),
        ("nats.pasword", "p", "***"),
        ("nats.name", {"password": "p"}, "***"),
        ("nats.creds", "/run/nats.creds", "/run/nats.creds"),
        ("nats.creds", "-----BEGIN NATS USER JWT-----\n", "***"),
        ("nats.nkey", SEED, "***"),
        ("nats.tls_key", f"-----BEGIN {PEM}-----", "***"),
        ("nats.timeout", 5.0, 5.0),
        ("nats.servers", ["tls://a:p@h:4222", "tls://i"], ["tls://***@h:4222", "tls://i"]),
        ("nats.servers", "tls://a:p,@q@h, nats://i,j", "tls://***@h, nats://i,j"),
        ("nats.servers", "a:p@h", "***@h"),
        ("nats.servers", {"url": "p"}, "***"),
        ("spark.properties.spark.hadoop.fs.s3a.secret.key", "p", "***"),
        ("key_file", "/run/keys", "/run/keys"),
        ("key_file", f"k1:{KEY}", "***"),
        ("store", "/data/a@b?c=d", "/data/a@b?c=d"),
        ("store", "s3://b/p?region=eu-1", "s3://b/p?region=eu-1"),
        ("store", "s3://id:s/e@b/p?region=eu-1&secret_key=p", "s3://***@b/p?region=eu-1&secret_key=***"),
        ("store", "s3://b?endpoint=https://id:p@h", "s3://b?endpoint=https://***@h"),
        ("filter_subjects", ["a.*"], ["a.*"]),
        ("spark.java", None, None),
    ],
)
def test_no_secret_is_shown(place: str, value: Any, expected: Any) -> None:
    assert redact_value(tuple(place.split(".", 2)), value) == expected


def test_a_wrong_variable_of_the_connection_is_not_put_down_to_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_CA", "nowhere.pem")
    (said,) = found(file, NAMED + '[nats]\nservers = ["tls://h"]\n')
    assert said.startswith("The CA file nowhere.pem does not exist")
    assert "capture.toml" not in said


def test_a_key_in_the_place_of_its_file_is_not_told(file: Path) -> None:
    (said,) = found(file, NAMED, CAPTURE_KEY_FILE=f"k1:{KEY}")
    assert said == "the key file *** can't be read: No such file or directory (key_file: variable CAPTURE_KEY_FILE)"


@pytest.mark.parametrize(
    ("setting", "notes"),
    [
        ('format = "ndjson"', []),
        ('format = "parquet"\nenvelope = "columns"', []),
        ('format = "ndjson"\nenvelope = "nested"', ["ndjson-decoded: the compaction leaves"]),
        (
            'format = "raw"\nenvelope = "none"',
            [
                "raw-value: messages are not stored whole: `capture restore`",
                "raw-value: the compaction leaves",
                "raw-value: `capture verify` counts their messages by the entries",
            ],
        ),
        ('format = "csv"', ["csv: messages are not stored whole", "csv: the compaction leaves"]),
    ],
)
def test_a_check_says_what_the_archive_does_not_allow(file: Path, setting: str, notes: list[str]) -> None:
    assert found(file, f'stream = "S"\nstore = "lake"\ndecoder = "json"\n{setting}') == []
    said = limits(load(file, {}, environment={}))
    assert [one.startswith(f"blocks are {note}") for one, note in zip(said, notes, strict=True)] == [True] * len(notes)


@pytest.mark.parametrize(
    ("setting", "is_shown"),
    [
        ('format = "parquet"', True),
        ('format = "ndjson"', False),
        ('format = "csv"', False),
        ("encrypt = true", False),
        ("encrypt = false", True),
    ],
)
def test_a_check_says_which_blocks_a_fresh_table_does_not_show(
    file: Path, monkeypatch: pytest.MonkeyPatch, setting: str, is_shown: bool
) -> None:
    monkeypatch.setenv("CAPTURE_KEYS", f"k1:{KEY}")
    for fresh in (0.0, 2.0):
        assert found(file, f"{NAMED}\n{setting}\n[table]\nfresh = {fresh}", CAPTURE_KEYS=f"k1:{KEY}") == []
        notes = [one for one in limits(load(file, {}, environment={})) if one.startswith("fresh shows plain Parquet")]
        assert len(notes) == (fresh > 0 and not is_shown)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('format = "ndjson"\nenvelope = "none"', "the decoder 'raw' makes none: name another decoder"),
        ('format = "parquet"\nenvelope = "none"', "format parquet has no envelope 'none'; ndjson, csv, raw have"),
        (
            'format = "ndjson"\nenvelope = "flat"',
            "there is no envelope 'flat'; the known ones are columns, nested, none",
        ),
    ],
)
def test_a_check_refuses_an_envelope_that_can_not_be_written(file: Path, setting: str, said: str) -> None:
    [sentence] = found(file, f'stream = "S"\nstore = "lake"\n{setting}')
    assert said in sentence
    assert "envelope: file capture.toml, line 4" in sentence

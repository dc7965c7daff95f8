"""Commands that are given a place where no archive is: a sentence and a status that no monitoring takes for well."""

import pytest
from capture_command import calling
from secret import write_secret

from capture.archive.identity import claim
from capture.stores import open_store

NONE = "there is no archive in {url}: it has no _archive.json, nothing was ever captured into it. Check the store"


@pytest.fixture
def capture(shell, monkeypatch, capsys):
    """Run the command line in this process, in the test's folder: (status, standard output, standard error)."""
    monkeypatch.chdir(shell.folder)
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    return calling(monkeypatch, capsys)


@pytest.fixture(scope="module")
def stream(make_stream):
    return make_stream("no_archive", 5)


STREAM = ("--stream", "no_archive")
READING = {
    "verify": ("verify", *STREAM),
    "verify --offline": ("verify", "--offline", "--stream", "WRONG"),
    "purge": ("purge", "--captured", "--force", *STREAM),
    "ls": ("ls",),
    "sql": ("sql", "SELECT 1"),
    "head": ("head", *STREAM),
    "head --offline": ("head", "--offline"),
    "sweep": ("sweep", *STREAM),
    "sweep --dry-run": ("sweep", "--dry-run", *STREAM),
    "compact": ("compact", *STREAM),
    "compact --dry-run": ("compact", "--dry-run", *STREAM),
    "upgrade": ("upgrade", "--force", *STREAM),
    "upgrade --dry-run": ("upgrade", "--dry-run", *STREAM),
    "upgrade --dry-run --offline": ("upgrade", "--dry-run", "--offline"),
    "cat": ("cat",),
    "restore": ("restore",),
    "restore --stream": ("restore", "--offline", *STREAM),
}


@pytest.mark.parametrize("command", READING)
def test_a_place_without_an_archive_is_said_and_is_not_made_one(shell, stream, capture, command):
    place = shell.folder / "typo"
    status, out, err = capture(*READING[command], "--store", "typo")
    assert (status, out) == (1, "")
    assert NONE.format(url=place.as_uri()) in err
    assert err.count("\n") == 1
    assert not place.exists()


def test_an_export_and_a_catalog_of_no_archive_are_refused(shell, stream, capture):
    nowhere = NONE.format(url=(shell.folder / "typo").as_uri())
    status, _, err = capture("export", "typo", "backup", *STREAM)
    assert (status, nowhere in err) == (1, True)
    write_secret(shell.folder / "tokens", "a token that nobody guesses\n")
    served = ("catalog", "serve", "--plain-http", "--port", "0", "--token-file", "tokens")
    status, _, err = capture(*served, *STREAM, "--store", "typo")
    assert (status, nowhere in err) == (1, True)


def test_for_nagios_and_prometheus_no_archive_is_unknown(shell, capture):
    for place in ("typo", "/etc"):
        arguments = ("--offline", "--stream", "WRONG", "--store", place, "--nagios", "--prometheus", "figures")
        status, out, err = capture("verify", *arguments)
        assert (status, err) == (3, "")
        assert out.startswith(f"CAPTURE UNKNOWN - there is no archive in {open_store(place).url}: ")
        assert 'capture_verify_ok{stream="WRONG"} 0' in (shell.folder / "figures").read_text()


def test_a_schema_that_is_wrong_is_said_of_an_archive_that_is_empty(shell, stream, served, capture):
    served(lambda natty: claim(open_store(str(shell.folder / "lake")), "OTHER", "OTHER", "2026-11-21T03:00:00Z"))
    status, _, err = capture("sql", "SELECT 1", "--store", "lake", "--schema", "a")
    assert (status, "schema 'a' is wrong at its end" in err) == (1, True)


@pytest.mark.parametrize("command", ["verify --offline", "sql", "cat", "sweep"])
def test_another_stream_than_the_archives_is_named_with_those_that_it_has(shell, stream, served, capture, command):
    served(lambda natty: claim(open_store(str(shell.folder / "lake")), "OTHER", "OTHER", "2026-11-21T03:00:00Z"))
    words = [word for word in READING[command] if word not in ("--stream", "WRONG", "no_archive")]
    status, _, err = capture(*words, *STREAM, "--store", "lake")
    assert status == 1
    assert "is of OTHER, not of no_archive" in err
    names = sorted(path.name for path in (shell.folder / "lake" / "_streams").iterdir())
    assert names == ["OTHER.json"]


def test_an_archive_that_nats_knows_and_the_store_has_lost_is_missing_and_critical(
    shell, stream, served, capture, captured
):
    captured(stream, 5, "--store", "lake", "--max-age", "0.3")
    assert capture("verify", *STREAM, "--store", "lake")[0] == 0
    (shell.folder / "lake").rename(shell.folder / "elsewhere")
    status, out, _ = capture("verify", *STREAM, "--store", "lake")
    assert status == 3
    assert "5 MISSING" in out
    assert "is missing, and the head names it" in out

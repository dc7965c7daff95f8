"""`capture serve` as a process: over TLS, asked by programs and by a real browser."""

import asyncio
import json
import ssl
import urllib.error
import urllib.request

import msgspec
import pytest
from archive_states import NODE, STATE
from browsing import browsing
from patient import PATIENCE
from pipeline_tables import PipelineTables, file, table
from secret import write_secret

from capture.archive.iceberg_state import CompactionRun, CompactionState
from capture.archive.identity import claim
from capture.config.load import load
from capture.ingest.board import Board, StreamState
from capture.node.status.pipelines import NO_LEADER
from capture.pipelines.document import Run
from capture.stores import open_store

TOKEN = "a token for the status page"
TRAFFIC = StreamState(stream="ORDERS", first=1, last=5000, acked=4900, pending=100, unacked=3, lag=2.5, held=4900)


@pytest.fixture
def archive(natty_name, served):
    """Publish the state of an archive that nobody leads; returns its name."""
    name = natty_name("page")
    publish(served, name)
    return name


def publish(served, archive, runs=(), **changed):
    state = msgspec.structs.replace(STATE, archive=archive, streams=[TRAFFIC], **changed)

    async def work(natty):
        await Board(natty, archive).publish(state)
        compaction = CompactionState(runs=list(runs))
        await Board(natty, archive).announce(msgspec.structs.replace(NODE, compaction=compaction))

    served(work)


@pytest.fixture
def page(shell, archive, natty_tls):
    """Start the page over TLS for whoever has the token; returns its URL."""
    write_secret(shell.folder / "tokens", f"{TOKEN}\n")
    files = ("--cert", natty_tls.server_cert, "--key", natty_tls.server_key, "--token-file", "tokens")
    process = shell.start("capture", "serve", "--stream", archive, "--port", 0, *files)
    said = process.stdout.readline()
    assert said.startswith(f"the status of {archive} is served on https://127.0.0.1:")
    return said.split()[-1]


@pytest.fixture
def get(page, natty_tls):
    """Return a function that asks for a path, and gives status, type and text."""
    context = ssl.create_default_context(cafile=natty_tls.ca)

    def ask(path, **headers):
        request = urllib.request.Request(page + path, headers=headers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=PATIENCE) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    return ask


def test_programs_get_the_status_as_json_and_for_prometheus_if_they_show_a_token(get, archive):
    shown = {"Authorization": f"Bearer {TOKEN}"}
    status, headers, text = get("/status.json", **shown)
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    [said] = json.loads(text)["archives"]
    assert (said["archive"], said["ok"]) == (archive, False)
    text = "the sweep has no leader: stored blocks are not adopted"
    assert said["troubles"] == [{"text": text, "entry": "capturenosweepleader"}]
    assert said["state"]["rows"] == 70_000
    status, _, text = get("/metrics", **shown)
    assert status == 200
    assert f'capture_archive_rows{{archive="{archive}"}} 70000\n' in text
    assert f'capture_archive_catalog_current{{archive="{archive}",stream="ORDERS"}} 1\n' in text
    assert f'capture_archive_stream_lag_seconds{{archive="{archive}",stream="ORDERS"}} 2.5\n' in text
    assert f'capture_archive_led{{archive="{archive}",office="sweep"}} 0\n' in text
    assert text.count("# TYPE capture_archive_led gauge") == 1
    for wrong in ({}, {"Authorization": "Bearer another token of that length"}, {"Authorization": "Basic ???"}):
        for path in ("/", "/page.js", "/status.json", "/history.json", "/metrics", "/nothing"):
            status, headers, text = get(path, **wrong)
            assert (status, text) == (401, "a token is needed\n")
            assert headers["WWW-Authenticate"].startswith("Basic realm=")
    assert get("/readyz")[::2] == (200, "ready\n")  # probes have no token
    assert get("/livez")[::2] == (200, "alive\n")
    history = json.loads(get("/history.json", **shown)[2])["archives"][archive]
    assert [point[2] for point in history] == [2.5] * len(history)
    assert get("/nothing", **shown)[0] == 404
    assert get("/page.py", **shown)[0] == 404


def test_a_browser_shows_it_and_follows_what_changes(page, archive, served, tmp_path):
    with browsing(tmp_path) as browser:
        seen = browser(open=page, password=TOKEN, until="1 of 1 archives has a problem")
        for expected in (
            archive,
            "the sweep has no leader: stored blocks are not adopted",
            "1,234 in 3 blocks",
            "70,000 in 6 files",
            "56.8 kB of blocks, 8.9 MB of table",
            "ORDERS",
            "4,900",
            "node-1",
            "4,321",
            "6129484611666145821",  # the table's snapshot
            "lake.orders",  # the entry in the user's catalog
            "last runs of the compaction\nnone since its leader was elected",
            "next check of the compaction\none is running",
        ):
            assert expected in seen["text"]
        runs = [CompactionRun(began=1_790_000_000.0 + at, seconds=2.5, inputs=12, rows=340 + at) for at in range(7)]
        publish(served, archive, runs=runs, rows=1_234_567)
        seen = browser(until="1,234,567 in 6 files", picture=str(tmp_path / "page.png"))
        assert not seen["wider"]
        shown = [run.rows for run in runs if f"\t12\t0\t{run.rows}\tdone" in seen["text"]]
        assert shown == [342, 343, 344, 345, 346]  # a node of an earlier version reports more
        assert "none since its leader was elected" not in seen["text"]
        seen = browser(open=page, width=390, until="1,234,567 in 6 files")
        assert not seen["wider"]  # on a telephone nothing is beyond the edge
        assert seen["complaints"] == []


@pytest.fixture
def derived(shell, archive):
    """Write a configuration with a pipeline that has a table with one good and one failed run."""
    (shell.folder / "capture.toml").write_text(
        f'stream = "{archive}"\nstore = "lake"\n[[pipeline]]\nname = "revenue"\nmode = "append"\n'
        f'sql = "SELECT sequence FROM `{archive}`"\n'
    )
    pipeline = load(shell.folder / "capture.toml", {}, environment={}).pipeline[0]
    good = Run(number=1, began=1_790_000_000.0, ended=1_790_000_004.5, rows_in=4321, rows_out=1234, files=2)
    bad = Run(number=1, began=1_790_000_300.0, ended=1_790_000_301.0, error="pipeline revenue: Spark has ended")

    async def make():
        await claim(open_store(str(shell.folder / "lake")), archive, archive, "2026-11-21T03:00:00Z", None)
        tables = PipelineTables(shell.folder / "lake")
        await tables.commit({"revenue": table(pipeline, runs=[good, bad])}, [file("revenue", 1234)])

    asyncio.run(make())
    return shell


def test_the_pipelines_are_in_the_status_and_in_the_figures(derived, archive):
    done = derived.capture("status", "--config", "capture.toml", "--json")
    said = json.loads(done.out)
    assert (done.status, done.err, said["archive"], said["ok"]) == (3, "", archive, False)
    (one,) = said["pipelines"]["pipelines"]
    assert (one["name"], one["state"], one["rows"], one["failures"]) == ("revenue", "failed", 1234, 1)
    assert {NO_LEADER, "pipeline revenue: Spark has ended"} <= {one["text"] for one in said["troubles"]}
    done = derived.capture("status", "--config", "capture.toml")
    assert "pipelines, led by no node" in done.out
    assert "• pipeline revenue: Spark has ended\n" in done.out
    process = derived.start("capture", "serve", "--config", "capture.toml", "--port", 0, "--plain-http")
    url = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    assert 'capture_pipeline_failures{pipeline="revenue"} 1\n' in text
    assert f'capture_pipelines_led{{pipelines="{archive}"}} 0\n' in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_runs_of_each_pipeline(derived, tmp_path, scheme):
    process = derived.start("capture", "serve", "--config", "capture.toml", "--port", 0, "--plain-http")
    url = process.stdout.readline().split()[-1]
    with browsing(tmp_path) as browser:
        seen = browser(
            open=url, scheme=scheme, until="the pipelines have a problem", picture=str(tmp_path / f"{scheme}.png")
        )
        for expected in ("leader of the pipelines", "revenue", "failed", "1,234", "4,321", "Spark has ended"):
            assert expected in seen["text"]
        assert seen["complaints"] == []
        assert not seen["wider"]


def test_before_a_node_has_run_the_page_says_how_to_start_one_and_is_ready(shell, natty_name):
    process = shell.start("capture", "serve", "--stream", natty_name("new"), "--port", 0, "--plain-http")
    url = process.stdout.readline().split()[-1]
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"{url}/status.json", timeout=PATIENCE)
    said = json.loads(refused.value.read())
    assert (said["empty"], said["start"].startswith("capture run --stream ")) == (True, True)
    assert "no node is running, start one with `capture run`" in said["error"]
    with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE) as answer:
        assert answer.read() == b"ready\n"


def test_a_browser_shows_the_hour_what_is_old_in_grey_and_links_to_the_runbook(shell, archive, tmp_path):
    book = ("--runbook", "https://docs.example/runbook/")
    process = shell.start("capture", "serve", "--stream", archive, "--port", 0, "--plain-http", *book)
    url = process.stdout.readline().split()[-1]
    with browsing(tmp_path) as browser:
        browser(open=url, until="what to do")
        seen = browser(open=url, until="messages stored per second")  # the server remembers, not the page
        for expected in (
            "age of the oldest message not captured",
            "what the acks of ORDERS wait for",
            "node-1 has an earlier version, which does not report what it has",
        ):
            assert expected in seen["text"]
        assert "docs/runbook.md" not in seen["text"]
        assert seen["complaints"] == []


def test_without_tls_it_is_served_on_a_loopback_address_only(shell):
    stream = ("--stream", "S", "--port", 0)
    assert "give --cert and --key to serve over TLS" in shell.capture("serve", *stream).complaint
    done = shell.capture("serve", *stream, "--plain-http", "--host", "0.0.0.0")
    assert done.status == 1
    assert "without TLS, only a loopback address can be served, not '0.0.0.0'" in done.complaint


def test_a_token_that_can_be_guessed_and_files_that_are_none_are_refused(shell, natty_tls):
    files = ("--cert", natty_tls.server_cert, "--key", natty_tls.server_key)
    write_secret(shell.folder / "short", "secret\n")
    done = shell.capture("serve", "--stream", "S", "--port", 0, *files, "--token-file", "short")
    assert "a token needs at least 16 characters" in done.complaint
    write_secret(shell.folder / "empty", "\n")
    assert "has no token" in shell.capture("serve", "--stream", "S", *files, "--token-file", "empty").complaint
    assert "can't be read" in shell.capture("serve", "--stream", "S", *files, "--token-file", "none").complaint
    other = ("--cert", natty_tls.server_cert, "--key", natty_tls.client_key)
    assert "are not a certificate and its key" in shell.capture("serve", "--stream", "S", *other).complaint

import dataclasses
import re
from datetime import UTC, datetime, timedelta

import pytest
from full_disk import WAYS
from secret import write_secret

from natty.testing import DevCA, NatsServer, ServerOptions, free_ports


@pytest.fixture
def shell(quick_shell):
    return quick_shell


def told(done, status=1):
    """Return the one sentence of a command that refused."""
    assert done.status == status, (done.out, done.err)
    assert done.out == ""
    return done.complaint


@pytest.fixture(scope="module")
def stream(make_stream):
    return make_stream("bad_input", 10)


@pytest.fixture
def files(tmp_path):
    """Write a certificate and its key into files of the test's folder and return their paths."""

    def write(pair, name):
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}-key.pem"
        cert.write_bytes(pair.cert_pem)
        write_secret(key, pair.key_pem)
        return cert, key

    return write


LAKE = ("--stream", "S", "--store", "lake")
COMMANDS = {
    "capture run": ("capture", "run", *LAKE),
    "capture verify": ("capture", "verify", *LAKE),
    "natty doctor": ("natty", "doctor"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_can_not_be_reached(shell, command):
    url = f"tls://127.0.0.1:{free_ports(1)[0]}"
    at_once = {"CAPTURE_START_TIMEOUT": "0"} if command == "capture run" else {}
    assert told(shell.run(*COMMANDS[command], "--server", url, **at_once)) == (
        f"{command.split()[0]}: no server could be reached. {url}: nothing listens there; check the port, and that the"
        " server runs"
    )


def test_a_ca_that_did_not_sign_the_servers_certificate(shell, tmp_path):
    other = tmp_path / "other.pem"
    other.write_bytes(DevCA.create("another CA").cert_pem)
    for command in (COMMANDS["natty doctor"], COMMANDS["capture run"]):
        said = told(shell.run(*command, "--tls-ca", other))
        assert f"has a certificate that is not signed by the CA in {other} (" in said


def test_a_servers_certificate_that_has_expired(shell, natty_ca, natty_tls, tmp_path, files):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = natty_ca.issue("old", not_before=yesterday - timedelta(days=1), not_after=yesterday)
    cert, key = files(expired, "expired")
    tls_files = dataclasses.replace(natty_tls, server_cert=cert, server_key=key)
    with NatsServer(tls_files=tls_files, folder=tmp_path / "nats") as server:
        said = told(shell.capture("run", *LAKE, "--server", server.url))
    assert f"{server.url}: it has a certificate that has expired, or whose CA has expired; renew it" in said


def test_a_key_of_another_certificate(shell, natty_ca, natty_tls, files):
    _, key = files(natty_ca.issue("other"), "other")
    said = told(shell.capture("run", *LAKE, "--tls-key", key))
    assert f"The key {key} does not belong to the client certificate {natty_tls.client_cert}; give the pair" in said


def test_a_certificate_without_its_key(shell):
    said = told(shell.capture("run", *LAKE, NATS_KEY=""))
    assert "a client certificate needs its key, and a key its certificate: give both" in said


def test_no_client_certificate_where_the_server_wants_one(shell):
    said = told(shell.capture("run", *LAKE, NATS_KEY="", NATS_CERT=""))
    # The server may have closed the connection before its reason could be read: then it is told with less certainty.
    assert re.search("give (a certificate and its key|tls_cert and tls_key)|Broken pipe", said)


def test_a_ca_file_that_is_not_there(shell):
    said = told(shell.capture("run", *LAKE, NATS_CA="nowhere.pem"))
    assert "The CA file nowhere.pem does not exist; check the path" in said


def test_jetstream_that_is_not_enabled(shell, natty_tls, tmp_path):
    with NatsServer(ServerOptions(jetstream=False), tls_files=natty_tls, folder=tmp_path / "nats") as server:
        for command in COMMANDS.values():
            said = told(shell.run(*command, "--server", server.url))
            assert "JetStream is not enabled on this server or account; put `jetstream {}` into the server's" in said


@pytest.mark.parametrize("command", ["run", "verify", "sweep", "compact"])
def test_a_stream_that_does_not_exist(shell, command, tmp_path):
    said = told(shell.capture(command, "--stream", "nothing_here", "--store", "lake"))
    assert said == (
        "capture: there is no stream 'nothing_here' on this server: create it, or name another with --stream"
    )
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_name_that_no_stream_can_have(shell, command):
    said = told(shell.capture(command, "--stream", "a b", "--store", "lake"))
    assert said == "capture: stream name 'a b': ' ' at character 2 is not allowed"


def test_a_durable_with_other_settings(shell, stream, served):
    async def work(natty):
        await natty.ensure_consumer(stream, "other", ack_wait=700.0)

    served(work)
    said = told(shell.capture("run", "--stream", stream, "--store", "lake", "--durable", "other"))
    assert (
        f"consumer other of stream {stream} exists with another configuration: ack_wait is 700 s, wanted 120 s (destr"
    ) in said
    assert f'or `ensure_consumer("{stream}", "other", …, allow_destructive=True)`.' in said


ENSURE = """
import asyncio, sys
from natty import Natty, NattyError

async def main():
    async with Natty() as natty:
        try:
            await natty.ensure_stream(sys.argv[1], subjects=["other.*"])
        except NattyError as error:
            sys.exit(str(error))

asyncio.run(main())
"""


def test_a_stream_with_another_configuration(shell, stream, tmp_path):
    (tmp_path / "ensure.py").write_text(ENSURE)
    said = told(shell.run("runpy", "ensure.py", stream))
    assert said == (
        f"stream {stream} exists with another configuration: subjects is ['{stream}.*'], wanted ['other.*']"
        f" (destructive: messages on {stream}.* would not be stored any more). Nothing was changed. To keep it as"
        " it is, name the same values in your program. To change it"
        f' anyway: `natty stream apply --allow-destructive`, or `ensure_stream("{stream}", …, allow_destructive=True)`.'
    )


@pytest.mark.parametrize("command", ["run", "verify", "ls", "sweep", "sql"])
def test_a_store_that_is_a_file(shell, stream, tmp_path, command):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    arguments = ["SELECT 1"] if command == "sql" else []
    said = told(shell.capture(command, *arguments, "--stream", stream, "--store", "taken"))
    assert f"capture: the store {taken} can't be used: " in said
    assert "check that the store is a folder, mounted, and that this user has the permissions to read and write" in said


def test_a_store_below_a_file(shell, stream, tmp_path):
    (tmp_path / "taken").write_text("a file")
    said = told(shell.capture("run", "--stream", stream, "--store", "taken/lake"))
    assert f"can't be used: {tmp_path}/taken: File exists (while " in said
    assert "); check that the store is a folder, mounted, and that" in said


def test_a_store_that_can_not_be_written(shell, stream):
    said = told(shell.capture("run", "--stream", stream, "--store", "/proc/lake"))
    assert "capture: the store /proc/lake can't be used: " in said
    assert "can't be used: No such file or directory (while " in said
    assert "); check that folders can be made there" in said


UNHURRIED = """
from functools import partial
import capture.node.node, capture.ingest.source, natty.wire.connection, natty.pulling.pull
from capture.cli import main
capture.node.node.CommitOptions = partial(capture.node.node.CommitOptions, backoff=0.01)
capture.ingest.source.END_TIMEOUT = natty.wire.connection.CLOSE_TIMEOUT = 60.0  # to hand back
natty.pulling.pull.DRAIN_TIMEOUT = 60.0
main()
"""


@pytest.mark.parametrize("disk", WAYS)
def test_a_disk_that_fills_up(shell, make_stream, captured, natty_name, tmp_path, disk):
    stream = make_stream(natty_name("full_disk"), 20_000)
    run = ["run", "--stream", stream, "--store", "disk/lake", "--max-messages", "20000", "--max-age", "100"]
    command = disk(tmp_path / "disk", 48_000, UNHURRIED, *run, "--decoder", "json")
    done = shell.finish(shell.execute(command, CAPTURE_ON_STORE_FAILURE="stop"))
    assert done.status == 1
    assert "is full (No space left on device;" in done.complaint
    assert "free space there" in done.complaint

    another = {"CAPTURE_ARCHIVE": f"{stream}_2", "CAPTURE_STORE": "lake"}
    captured(stream, 20_000, "--max-age", "1", **another)  # far below ack_wait: everything was handed back
    verified = shell.capture("verify", "--stream", stream, **another)
    assert verified.status == 0
    assert verified.out == "20,000 stored, 20,000 of them not compacted yet; nothing is missing\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('stream = "S', "capture.toml is not valid TOML: Unterminated string (at end of document)"),
        ("strem = 1", "capture.toml: there is no setting `strem`"),
        ('[limits]\nmax_age = "soon"', "capture.toml: `limits.max_age` must be a number, not text"),
        ("ack_wait = 5.0\n[limits]\nmax_age = 9.0", "max_age 9.0 s must be below the consumer's ack_wait 5.0 s"),
        ('decoder = "jsn"', "there is no decoder 'jsn'; the known ones are raw, json, message, module:attribute"),
        ('partition = "subject"', "subject: needs the number of a token, counted from 0, as in subject:1; not ''"),
        ('format = "xls"', "there is no writer 'xls'; the known ones are parquet, ndjson, csv, raw"),
        (
            'store = "ftp://host/lake"',
            "ftp:// is not a kind of store that this version supports; supported are file:///folder",
        ),
        ('[nats]\nserver = "x"', "unknown setting server; there are: api_prefix, "),
    ],
)
def test_a_configuration_that_is_broken(shell, tmp_path, text, said):
    (tmp_path / "capture.toml").write_text(text)
    options = ["--stream", "S"] + ([] if "ftp" in text else ["--store", "lake"])
    assert told(shell.capture("run", "--config", "capture.toml", *options)).startswith(f"capture: {said}")


def test_a_configuration_that_is_not_there(shell):
    said = "capture: nowhere.toml can't be read: No such file or directory; check --config"
    assert told(shell.capture("run", "--config", "nowhere.toml")) == said
    assert told(shell.capture("run", CAPTURE_CONFIG="nowhere.toml")) == said


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [(("run",), "stream"), (("run", "--stream", "S"), "store"), (("ls",), "store"), (("sql", "SELECT 1"), "store")],
)
def test_an_option_that_is_missing(shell, arguments, missing):
    said = f"capture: no {missing} is named: give --{missing}, CAPTURE_{missing.upper()} or {missing} in capture.toml"
    assert told(shell.capture(*arguments)) == said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("capture", "nonsense"), "No such command 'nonsense'."),
        (("capture", "run", "--nonsense"), "No such option: --nonsense"),
        (("capture", "sql"), "Missing argument 'query'."),
        (("capture", "run", "--max-age", "soon"), "Invalid value for '--max-age'"),
        (("capture", "--log-level", "loud", "run"), "Invalid value for '--log-level'"),
        (("capture", "run", "--log-level", "loud"), "Invalid value for '--log-level'"),
        (("capture", "demo", "--rows", "0"), "Invalid value for '--rows'"),
        (("natty", "nonsense"), "No such command 'nonsense'."),
        (("natty", "leader", "show"), "Missing argument 'name'."),
    ],
)
def test_a_usage_error_is_status_2(shell, command, said):
    done = shell.run(*command)
    assert (done.status, done.out) == (2, "")
    assert f"Error: {said}" in done.err
    assert "--help" in done.err
    assert "Traceback" not in done.err

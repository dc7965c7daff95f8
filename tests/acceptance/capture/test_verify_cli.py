"""`capture verify` and `capture purge` as a user, a cron job and a monitoring system run them."""

import json
import shutil
from base64 import b64encode

import msgspec
import pytest
from archiving import store_all, sweep_once
from capture_command import calling
from prometheus_client.parser import text_string_to_metric_families

from capture.archive.chain import Head
from capture.archive.manifest import Manifest
from capture.config.load import load
from capture.stores import open_store
from natty.testing import free_ports

MESSAGES = 30


@pytest.fixture(scope="module")
def captured_stream(make_stream, served, tmp_path_factory):
    """Store a stream of its own, once for all; return its name and the folder of its archive."""
    stream = make_stream("verify_cli", MESSAGES)
    lake = tmp_path_factory.mktemp("verify") / "lake"

    async def work(natty):
        config = load(None, {"stream": stream, "store": str(lake), "partition": "subject:1"}, environment={})
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": 4})
        await store_all(natty, config, open_store(str(lake)))
        await sweep_once(natty, config, open_store(str(lake)))

    served(work)
    return stream, lake


@pytest.fixture
def archive(captured_stream, shell, monkeypatch):
    """Copy the archive into the test's folder, and return what names it."""
    stream, lake = captured_stream
    shutil.copytree(lake, shell.folder / "lake")
    monkeypatch.chdir(shell.folder)
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    return ("--stream", stream, "--store", "lake")


@pytest.fixture
def capture(monkeypatch, capsys):
    """Run the command line in this process: (status, standard output, standard error)."""
    return calling(monkeypatch, capsys)


def a_block(folder):
    return sorted((folder / "lake" / "blocks").rglob("*.parquet"))[0]


def spoil(block):
    data = bytearray(block.read_bytes())
    data[len(data) // 2] ^= 1
    block.write_bytes(bytes(data))


def test_the_exit_status_of_the_process_says_how_it_is(shell, archive):
    well = shell.capture("verify", *archive)
    assert (well.status, well.err) == (0, "")
    assert well.out == "29 stored, 1 deleted in the stream, 29 of them not compacted yet; nothing is missing\n"
    a_block(shell.folder).unlink()
    assert shell.capture("verify", *archive).status == 3


def test_json_has_a_version_and_every_count(capture, archive):
    status, out, err = capture("verify", *archive, "--json")
    told = json.loads(out)
    assert (status, err, told["version"], told["status"], told["ok"]) == (0, "", 1, 0, True)
    assert (told["stored"], told["deleted"], told["missing"], told["expired"]) == (MESSAGES - 1, 1, 0, 0)
    assert (told["objects"], told["checksums"], told["stream_asked"]) == (2, True, True)
    assert told["stream"] == archive[1]


def test_docs_describe_every_field_of_the_json(capture, archive, request):
    text = (request.config.rootpath / "docs" / "verify.md").read_text()
    told = json.loads(capture("verify", *archive, "--json")[1])
    purge = json.loads(capture("purge", "--captured", *archive, "--dry-run", "--json")[1])
    assert [name for name in (*told, *purge) if f"`{name}`" not in text] == []
    figures = capture("verify", *archive, "--prometheus", "-")[1]
    assert [one.name for one in text_string_to_metric_families(figures) if f"`{one.name}`" not in text] == []


@pytest.mark.parametrize("damage", [lambda block: block.unlink(), spoil, lambda block: block.write_bytes(b"")])
def test_damage_of_each_kind_is_status_3_and_critical(capture, archive, shell, damage):
    damage(a_block(shell.folder))
    status, out, _ = capture("verify", *archive, "--json")
    told = json.loads(out)
    assert (status, told["ok"], len(told["problems"])) == (3, False, 1)
    assert told["missing"] >= MESSAGES // 2 - 1
    status, out, _ = capture("verify", *archive, "--nagios")
    assert status == 2
    assert out.startswith("CAPTURE CRITICAL - ")


def test_an_archive_of_a_newer_format_can_not_be_checked_and_nothing_of_it_is_missing(capture, archive, monkeypatch):
    monkeypatch.setattr(Manifest, "FORMAT", Manifest.FORMAT - 1)
    status, out, err = capture("verify", *archive)
    assert (status, out) == (1, "")
    assert "has format 3; this version reads up to 2: use the version that wrote it" in err


def test_what_a_quick_look_can_not_see(capture, archive, shell):
    spoil(a_block(shell.folder))
    for flag in ("--quick", "--no-checksums"):
        status, out, _ = capture("verify", *archive, flag)
        assert status == 0
        assert "checksums were not checked" in out
    assert capture("verify", *archive, "--deep")[0] == 3


def test_nagios_and_prometheus_at_once(capture, archive, shell):
    status, out, _ = capture("verify", *archive, "--nagios", "--prometheus", shell.folder / "capture.prom")
    assert status == 0
    assert out.startswith("CAPTURE OK - 29 stored")
    assert out.count("\n") == 1
    figures = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families((shell.folder / "capture.prom").read_text())
        for sample in family.samples
    }
    assert figures["capture_verify_ok", None] == 1
    assert figures["capture_verify_sequences", "stored"] == MESSAGES - 1
    assert figures["capture_verify_sequences", "deleted"] == 1


def test_without_the_server_the_archive_is_checked_and_what_could_not_be_is_said(capture, archive, monkeypatch):
    offline = capture("verify", *archive, "--offline")
    assert offline[0] == 0
    assert "compared with the recording of 20" in offline[1]
    url = f"tls://127.0.0.1:{free_ports(1)[0]}"
    status, out, _ = capture("verify", *archive, "--server", url)
    assert status == 1
    assert "nothing is missing" in out
    assert f"the stream could not be compared: no server could be reached. {url}: nothing listens there" in out
    status, out, _ = capture("verify", *archive, "--server", url, "--nagios")
    assert (status, out[:18]) == (1, "CAPTURE WARNING - ")


def test_where_nothing_can_be_checked_that_is_told_to_everybody(capture, archive, shell):
    (shell.folder / "taken").write_text("a file")
    (shell.folder / "capture.toml").write_text(f'stream = "{archive[1]}"\nstore = "taken"\n')
    nowhere = ("--config", "capture.toml")
    status, out, err = capture("verify", *nowhere, "--prometheus", "capture.prom")
    assert (status, out) == (1, "")
    assert err.startswith("capture: ")
    assert 'capture_verify_ok{stream="verify_cli"} 0' in (shell.folder / "capture.prom").read_text()
    status, out, err = capture("verify", *nowhere, "--nagios")
    assert (status, err) == (3, "")
    assert out.startswith("CAPTURE UNKNOWN - ")
    status, out, err = capture("verify", *archive, "--nagios", "--prometheus", "nowhere/capture.prom")
    assert (status, err) == (3, "")
    said = "nowhere/capture.prom can't be written: No such file or directory; check --prometheus"
    assert out == f"CAPTURE UNKNOWN - {said}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ("verify", "--json", "--nagios"),
            2,
            "only one of --json, --nagios and --prometheus - can use standard output",
        ),
        (
            ("verify", "--json", "--prometheus", "-"),
            2,
            "only one of --json, --nagios and --prometheus - can use standard output",
        ),
        (("verify", "--prometheus", "nowhere/x.prom"), 1, "nowhere/x.prom can't be written: No such file or directory"),
        (("verify", "--public-key", "nowhere"), 1, "the key file nowhere can't be read: No such file or directory"),
        (("verify", "--noted", "nowhere"), 1, "nowhere can't be read: No such file or directory; check --noted"),
        (("verify", "--accept", "4-2"), 2, "'4-2' is not a sequence or a run of them: write 2-4,6"),
        (("verify", "--accept", "2–4,x"), 2, "'x' is not a sequence or a run of them: write 2-4,6"),
        (("purge",), 2, "give --captured: it confirms that only messages proven to be archived are deleted"),
        (("purge", "--captured", "--keep-for", "soon"), 2, "'soon' is not a duration; write 30s, 1h30m or 7d"),
        (("purge", "--captured", "--keep", "-1"), 2, "Invalid value for '--keep'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(capture, archive, arguments, status, said):
    found, out, err = capture(*arguments, *archive)
    assert (found, out) == (status, "")
    assert said in " ".join(err.replace("│", " ").split())


def test_heads_that_were_noted_and_are_not_heads(capture, archive, shell):
    (shell.folder / "heads").write_text("hello\n")
    status, _, err = capture("verify", *archive, "--noted", "heads")
    assert status == 1
    assert "heads is not output of `capture head`" in err


def test_documents_must_be_signed_by_the_given_key_and_follow_those_that_were_noted(capture, archive, shell):
    (shell.folder / "keys").write_text(f"ours:{b64encode(bytes(range(32))).decode()}\n")
    status, out, _ = capture("verify", *archive, "--public-key", "keys")
    assert status == 3
    assert "is not signed" in out
    (shell.folder / "heads").write_text(capture("head", *archive)[1])
    assert capture("verify", *archive, "--noted", "heads")[0] == 0
    lost = Head(number=99, token=1, path="_manifest/0000000099-1.json", sha256="0" * 64)
    (shell.folder / "heads").write_bytes(msgspec.json.encode(lost))
    status, out, _ = capture("verify", *archive, "--noted", "heads", "--json")
    assert status == 3
    assert "_manifest/0000000099-1.json" in json.loads(out)["problems"][0]


def test_a_purge_asks_shows_and_keeps_a_margin(capture, archive, shell, served):
    stream = archive[1]
    status, out, err = capture("purge", "--captured", *archive, "--keep", "10")
    assert status == 1
    assert "19 messages of verify_cli can be deleted, all below sequence 21: the newest 10 messages are kept" in out
    assert "Delete 19 messages of stream verify_cli, all below sequence 21, permanently?" in err
    assert "There is no terminal to ask on: give --force" in err
    status, out, _ = capture("purge", "--captured", *archive, "--keep", "10", "--dry-run", "--json")
    told = json.loads(out)
    assert (status, told["version"], told["messages"], told["before"], told["purged"]) == (0, 1, 19, 21, None)

    async def state(natty):
        return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]

    assert served(state)["messages"] == MESSAGES - 1
    spoil(a_block(shell.folder))
    status, out, _ = capture("purge", "--captured", *archive, "--force")
    assert status == 0
    assert "0 messages of verify_cli can be deleted" in out
    assert served(state)["messages"] == MESSAGES - 1


def test_who_comes_while_it_is_asked_keeps_what_he_wants(capture, archive, served, monkeypatch):
    def asked(question, *, force):
        served(lambda natty: natty.ensure_consumer(archive[1], "late"))

    monkeypatch.setattr("capture.cli.verify.confirm", asked)
    status, out, _ = capture("purge", "--captured", *archive, "--json")
    told = json.loads(out)
    assert (status, told["messages"], told["purged"]) == (0, MESSAGES - 1, 0)
    status, out, _ = capture("purge", "--captured", *archive, "--dry-run")
    assert (
        "0 messages of verify_cli can be deleted, all below sequence 1: consumer late still needs messages after" in out
    )
    served(lambda natty: natty.delete_consumer(archive[1], "late"))


def test_a_purge_that_is_forced_deletes_and_verify_is_content(capture, archive, served):
    stream = archive[1]
    status, out, _ = capture("purge", "--captured", *archive, "--keep", "10", "--force", "--json")
    told = json.loads(out)
    assert (status, told["purged"], told["dry_run"]) == (0, 19, False)
    status, out, _ = capture("verify", *archive)
    assert status == 0
    assert out.startswith("29 stored, 1 deleted in the stream")
    assert out.endswith("nothing is missing\n")

    async def state(natty):
        return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]

    assert (served(state)["first_seq"], served(state)["messages"]) == (21, 10)

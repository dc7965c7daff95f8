import asyncio
import json
import re
import runpy
import stat
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import dockerfile
import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from capture.cli.app import make_app as make_capture_app
from capture.config.load import load
from capture.errors import StoreError
from capture.spark.options import read_properties
from natty.cli.app import make_app as make_natty_app
from natty.cli.tls import COMPOSE_HOSTS
from natty.config.tls import client_context
from natty.streams.file import load_streams

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docker-compose.yml").read_text()
PAGE = (ROOT / "docs" / "compose.md").read_text()
FILES = ROOT / "assets" / "compose"
DIGEST = re.compile(r"[a-z/]+:v?\d+\.\d+\.\d+[a-z-]*@sha256:[0-9a-f]{64}")
NOT_OURS = {"nats-1", "nats-2", "nats-3", "prometheus"}
BUILDING = {"secrets", "s3"}


@pytest.fixture(scope="module")
def compose():
    return YAML(typ="safe", pure=True).load(TEXT)


@pytest.fixture(scope="module")
def stages():
    return dockerfile.read(ROOT / "Dockerfile")


@pytest.fixture(scope="module")
def built(compose):
    """The stage of the Dockerfile that each image of ours is."""
    return {one["image"]: one["build"]["target"] for one in compose["services"].values() if "build" in one}


@pytest.fixture(scope="module")
def secrets():
    """The functions of the program that makes the secrets."""
    return runpy.run_path(str(FILES / "make_secrets.py"))


@pytest.fixture
def made(secrets, tmp_path):
    for name in ("tls", "store", "spark", "page"):
        (tmp_path / name).mkdir()
    secrets["make"](tmp_path)
    return tmp_path


def mounts(service, volume):
    return [one for one in service.get("volumes", []) if one.split(":")[0] == volume]


def test_it_follows_the_compose_specification(compose):
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))


def test_the_schema_would_notice_a_mistake(compose):
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"nats-1": {"imagine": "nats"}}}, schema)


def test_every_image_of_others_is_pinned_by_a_digest_or_by_its_full_version(compose, stages, built):
    others = [one["image"] for one in compose["services"].values() if one["image"] not in built]
    bases = [one.base for one in stages.values() if one.base not in stages]
    for image in [*others, *bases]:
        assert DIGEST.fullmatch(image) or re.fullmatch(r"nats:\d+\.\d+\.\d+-alpine", image), image


def test_the_services_that_are_ours_are_stages_of_the_dockerfile_and_not_root(compose, stages, built):
    for name, service in compose["services"].items():
        assert (service["image"] in built) is (name not in NOT_OURS), name
        if service["image"] in built:
            assert stages[built[service["image"]]].user == "10001:10001", name


def test_one_service_builds_an_image_and_the_others_never_pull_it_and_wait_for_it(compose, built):
    services = compose["services"]
    assert {name for name, one in services.items() if "build" in one} == BUILDING
    assert len(built) == len(BUILDING)  # no two build one tag: engines refuse that when both are built at once
    for name, service in services.items():
        if service["image"] in built and name not in BUILDING:
            assert service["pull_policy"] == "never", name
            builder = next(one for one in BUILDING if services[one]["image"] == service["image"])
            assert builder in waited_for(services, name), name
        else:
            assert "pull_policy" not in service, name


def waited_for(services, name):
    """Return the services that start before one, directly or not: Compose builds what a service waits for."""
    direct = services[name].get("depends_on", {})
    return {*direct, *(before for one in direct for before in waited_for(services, one))}


def test_every_service_has_a_read_only_root_and_gains_no_privileges(compose):
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if not name.startswith("nats-"):  # whose image is root's and reads the keys of another user
            assert service["cap_drop"] == ["ALL"], name


def test_no_plain_text_url_and_no_secret_stands_in_it():
    for path in [ROOT / "docker-compose.yml", ROOT / "Dockerfile", *FILES.iterdir()]:
        text = path.read_text() if path.is_file() else ""
        assert "nats://" not in text, path
        assert "http://" not in text, path
    assert "PASSWORD" not in TEXT


def test_a_secret_is_mounted_read_only_and_only_where_it_is_needed(compose):
    needed = {
        "store-key": {"s3", "bucket", "capture-1", "capture-2", "spark-worker", "cli"},
        "spark-key": {"spark-master", "spark-worker", "capture-1", "capture-2", "cli"},
        "page-token": {"capture-1", "capture-2", "status", "prometheus"},
    }
    for volume, wanted in needed.items():
        found = {name for name, one in compose["services"].items() if mounts(one, volume)}
        assert found == {*wanted, "secrets"}
    for volume in ("tls", *needed):
        for name, service in compose["services"].items():
            assert name == "secrets" or all(one.endswith(":ro") for one in mounts(service, volume)), name


def test_the_servers_differ_in_their_name_their_port_and_their_volume_only(compose):
    servers = [service for name, service in compose["services"].items() if name.startswith("nats-")]
    numbered = [
        json.dumps(server).replace(f"nats-{n}:/data", "").replace(f"--name=nats-{n}", "")
        for n, server in enumerate(servers, 1)
    ]
    same = {re.sub(r"127\.0\.0\.1:422\d", "", text) for text in numbered}
    assert len(servers) == 3
    assert len(same) == 1


def test_only_the_loopback_reaches_the_published_ports(compose):
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_certificates_name_every_service_that_shows_one(compose):
    shown = {name for name, one in compose["services"].items() if "server-key.pem" in json.dumps(one)}
    shown |= {name for name in compose["services"] if name.startswith(("nats-", "spark-", "prometheus"))}
    assert set(COMPOSE_HOSTS) == shown


def test_the_capture_nodes_differ_in_their_name_only(compose):
    first, second = (json.dumps(compose["services"][f"capture-{n}"]) for n in (1, 2))
    assert first.replace("capture-1", "") == second.replace("capture-2", "")


def test_every_volume_used_is_declared_and_every_file_exists(compose):
    used = {volume.split(":")[0] for s in compose["services"].values() for volume in s.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == set(compose["volumes"])
    assert all((ROOT / name).exists() for name in used if name.startswith("."))


def test_what_is_waited_for_exists_and_has_the_check_or_the_end_that_is_waited_for(compose):
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            condition = how["condition"]
            assert condition != "service_healthy" or "healthcheck" in services[other], (name, other)
            ends = services[other]["restart"] == "no"
            assert ends is (condition == "service_completed_successfully"), (name, other)


def test_the_images_copy_what_exists_and_no_certificates_are_sent_to_the_engine(stages):
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        one
        for stage in stages.values()
        for name, (_, *arguments) in stage.steps
        if name == "COPY" and not any(each.startswith("--from=") for each in arguments)
        for one in [each for each in arguments if not each.startswith("--")][:-1]
    ]
    assert all(any(Path(one).is_relative_to(each) for each in kept) for one in copied)
    text = (ROOT / "examples" / "spark_kubernetes" / "Dockerfile").read_text()
    copied += [one for line in text.splitlines() if line.startswith("COPY ") for one in line.split()[1:-1]]
    assert [one for one in copied if not (ROOT / one).exists()] == []
    assert not any(Path(each).is_relative_to("assets/tls") for each in kept)


def test_the_page_names_every_service_and_every_secret_and_its_commands_exist(compose):
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
    first_cells = "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    named = {*compose["services"], *(name for name in compose["volumes"] if name not in compose["services"])}
    assert {name for name in named if f"`{name}`" not in first_cells} == set()
    for line in lines:
        words = line.split("#")[0].split()
        assert words[:2] == ["docker", "compose"], line
        if words[2:4] == ["run", "--rm"]:
            assert words[4] in compose["services"], line
        if words[2:5] == ["run", "--rm", "cli"]:
            assert exists(words[5:]), line


def test_the_page_restarts_every_service_that_reads_the_files_that_may_be_changed(compose):
    (restarted,) = re.findall(r"`docker compose up --detach --force-recreate ([a-z0-9 -]+)`", PAGE)
    reading = {name for name, one in compose["services"].items() if mounts(one, "./assets/compose")}
    staying = {name for name in reading if compose["services"][name]["restart"] != "no"}
    assert set(restarted.split()) == {*staying, "streams"}


def exists(words):
    """Return whether the words begin with a command of ours."""
    command = get_command({"natty": make_natty_app, "capture": make_capture_app}[words[0]]())
    for word in words[1:]:
        if not getattr(command, "commands", None):
            break
        command = command.commands.get(word)
    return command is not None and not getattr(command, "commands", None)


def test_the_configuration_can_be_used(tmp_path):
    config = load(FILES / "capture.toml", environment={})
    streams = load_streams(FILES / "streams.toml")
    assert config.stream in str(streams)
    assert config.spark.properties_file == "/secrets/spark/spark.conf"


def test_while_the_store_is_away_each_reason_is_told_once(monkeypatch, capsys):
    monkeypatch.setenv("CAPTURE_CONFIG", str(FILES / "capture.toml"))
    reasons = iter(["no process listens there", "no process listens there", "the certificate has expired", ""])

    async def check(store):
        if reason := next(reasons):
            raise StoreError(reason)

    program = runpy.run_path(str(FILES / "bucket.py"))["main"]
    program.__globals__.update(check_store=check, open_store=str, PAUSE=0)
    asyncio.run(program())
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "waiting for the store: no process listens there"
    assert second == "waiting for the store: the certificate has expired"
    assert last.endswith(" is ready")


def test_prometheus_reads_every_service_that_has_metrics_over_tls_and_with_the_token(compose):
    jobs = YAML(typ="safe", pure=True).load((FILES / "prometheus.yml").read_text())["scrape_configs"]
    assert sorted(one for job in jobs for each in job["static_configs"] for one in each["targets"]) == [
        "capture-1:8190",
        "capture-2:8190",
        "status:8180",
    ]
    for job in jobs:
        assert (job["scheme"], job["tls_config"]["ca_file"]) == ("https", "/secrets/tls/ca.pem")
        assert job["authorization"]["credentials_file"] == "/secrets/page/token"


def test_the_secrets_are_new_each_time_and_only_their_owner_may_read_them(secrets, made):
    private = ["tls/server-key.pem", "tls/client-key.pem", "store/s3.env", "page/token"]
    private += ["spark/spark.conf", "spark/key.pem", "spark/chain.pem"]
    first = [(made / one).read_bytes() for one in private]
    assert {stat.S_IMODE((made / one).stat().st_mode) for one in private} == {0o600}
    client_context(ca=made / "tls/ca.pem", cert=made / "tls/client.pem", key=made / "tls/client-key.pem")
    secrets["make"](made)
    assert not any(old == (made / one).read_bytes() for old, one in zip(first, private, strict=True))


def test_spark_requires_its_secret_and_encrypts(made):
    settings = read_properties(str(made / "spark" / "spark.conf"))
    on = ("spark.authenticate", "spark.ssl.rpc.enabled", "spark.io.encryption.enabled")
    assert all(settings[name] == "true" for name in on)
    assert len(settings["spark.authenticate.secret"]) == 64


def test_expired_certificates_are_reported_with_the_command_that_renews_them(secrets, made):
    now = datetime.now(UTC)
    assert secrets["check"](made, now) == ""
    assert "docker compose run --rm secrets --renew" in secrets["check"](made, now + timedelta(days=366))


def test_secrets_that_were_half_made_are_made_again(secrets, made, monkeypatch, capsys):
    (made / "page" / "token").unlink()
    before = (made / "tls" / "ca.pem").read_bytes()
    monkeypatch.setattr("sys.argv", ["make_secrets.py", "--root", str(made)])
    secrets["main"]()
    assert (made / "tls" / "ca.pem").read_bytes() != before
    assert (made / "page" / "token").exists()
    kept = (made / "tls" / "ca.pem").read_bytes()
    with pytest.raises(SystemExit) as ended:
        secrets["main"]()
    assert ended.value.code is None
    assert (made / "tls" / "ca.pem").read_bytes() == kept

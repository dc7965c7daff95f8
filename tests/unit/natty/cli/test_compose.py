import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from natty.cli.tls import COMPOSE_HOSTS

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def compose():
    return YAML(typ="safe", pure=True).load(TEXT)


def services_that(compose, *, speak_nats):
    named = compose["services"].items()
    return {name: s for name, s in named if name.startswith(("nats-", "capture-")) is speak_nats}


def test_it_follows_the_compose_specification(compose):
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))


def test_the_schema_would_notice_a_mistake(compose):
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"nats-1": {"imagine": "nats"}}}, schema)


def test_every_image_is_pinned_by_a_version(compose):
    for name, service in compose["services"].items():
        image, _, tag = service["image"].rpartition(":")
        assert image, name
        assert re.match(r"\d+\.\d+", tag), f"{name}: {service['image']}"


def test_no_plain_text_url_stands_in_it():
    assert "nats://" not in TEXT
    assert "http://" not in TEXT


def test_whoever_speaks_nats_mounts_the_certificates_read_only(compose):
    speakers = services_that(compose, speak_nats=True)
    assert len(speakers) == 5
    for name, service in speakers.items():
        assert "./assets/tls:/etc/nats/tls:ro" in service["volumes"], name
    for name, service in services_that(compose, speak_nats=False).items():
        assert "4222" not in json.dumps(service), name


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
    shown = [
        name
        for name, s in compose["services"].items()
        if "server" in json.dumps(s["command"]) and "capture" not in name
    ]
    assert set(COMPOSE_HOSTS) == set(shown)


def test_the_capture_nodes_show_their_certificate_and_share_one_durable(compose):
    commands = [s["command"][-1] for name, s in compose["services"].items() if name.startswith("capture-")]
    assert len(commands) == 2
    assert commands[0] == commands[1]
    for flag in (
        "--tls-ca /etc/nats/tls/ca.pem",
        "--tls-cert ",
        "--tls-key ",
        "--durable capture",
        "tls://nats-3:4222",
    ):
        assert flag in commands[0]


def test_every_volume_used_is_declared(compose):
    used = {volume.split(":")[0] for s in compose["services"].values() for volume in s.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == set(compose["volumes"])

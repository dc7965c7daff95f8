import json
import stat

from electing import vacated
from patient import PATIENCE

from natty.testing import NatsServer, ServerOptions


def test_certificates_made_by_tls_init_serve_a_server_and_its_doctor(shell, tmp_path):
    made = shell.natty("tls", "init", "my certificates", "--days", "2")
    assert (made.status, made.err) == (0, "")
    assert "valid for 2 days" in made.out
    folder = tmp_path / "my certificates"
    names = {"ca.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem", ".gitignore"}
    assert {path.name for path in folder.iterdir()} == names
    assert all(stat.S_IMODE((folder / f"{who}-key.pem").stat().st_mode) == 0o600 for who in ("server", "client"))

    again = shell.natty("tls", "init", "my certificates")
    assert again.status == 1
    assert "--force" in again.complaint
    assert shell.natty("tls", "init", "my certificates", "--force").status == 0

    from natty.config.tls import TLSFiles

    with NatsServer(ServerOptions(), tls_files=TLSFiles.within(folder), folder=tmp_path / "nats") as server:
        options = ("--tls-ca", folder / "ca.pem", "--tls-cert", folder / "client.pem")
        found = shell.natty(
            "doctor", "--server", server.url, *options, "--tls-key", folder / "client-key.pem", "--json"
        )
    assert (found.status, found.err) == (0, "")
    facts = json.loads(found.out)
    assert facts["version"].split(".")[0] == "2"
    assert facts["tls"] == "required by us, in use"
    assert facts["jetstream streams"] == 0


def test_the_doctor_speaks_to_people_too(shell, nats_server):
    found = shell.natty("doctor")
    assert (found.status, found.err) == (0, "")
    assert "required by us, in use" in found.out
    assert "round trip" in found.out


def test_who_leads_is_shown_and_that_nobody_does(shell, natty_name, served, monkeypatch):
    monkeypatch.setattr("natty.elections.candidacy.LEAVE_WITHIN", PATIENCE)
    name = natty_name("election")
    shown = []

    async def office(natty):
        import asyncio

        async def work(term):
            shown.append(await asyncio.to_thread(shell.natty, "leader", "show", name))
            shown.append(await asyncio.to_thread(shell.natty, "leader", "show", name, "--json"))

        await natty.election(await vacated(natty, name), lease=PATIENCE, node_name="node-7").run(work)

    served(office)
    assert shown[0].out == f"node-7 leads {name}\n"
    assert json.loads(shown[1].out) == {"election": name, "leader": "node-7", "last_success": None}
    assert shell.natty("leader", "show", name).out == f"no node leads {name}\n"


def test_versions_and_help(shell):
    for program in ("natty", "capture"):
        assert shell.run(program, "--version").out.startswith(program)
        assert shell.run(program, "--help").status == 0

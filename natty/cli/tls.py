"""`natty tls`: creates certificates for development."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from natty.config.tls import DEV_DAYS, DEV_HOSTS, DevCA, TLSFiles

app = typer.Typer(help="Certificates for development and tests.", no_args_is_help=True)

DEFAULT_FOLDER = Path("assets/tls")
CONFIGURATION = "nats-server.conf"  # in assets/tls
COMPOSE_HOSTS = (
    "nats-1", "nats-2", "nats-3", "s3", "capture-1", "capture-2", "spark-master", "spark-worker", "status",
    "prometheus",
)  # fmt: skip
"""The services of docker-compose.yml that present a certificate."""


@app.callback()
def _group() -> None:
    """Keep `init` a command of its own: an app of one command would swallow its name."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")] = DEFAULT_FOLDER,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server, besides the loopback's. May be given several times."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Validity of the certificates, in days.")] = DEV_DAYS,
    force: Annotated[bool, typer.Option("--force", help="Replace existing certificates.")] = False,
) -> None:
    """Make a CA, a server's and a client's certificate in FOLDER. The CA's key is not stored: run this again to renew.

    Without --host, the server's certificate is valid for the loopback and the nodes of docker-compose.yml.
    """
    hosts = tuple(dict.fromkeys([*DEV_HOSTS, *(host or COMPOSE_HOSTS)]))
    files = DevCA.create(days=days).write(folder, hosts=hosts, days=days, force=force)
    typer.echo(f"Made certificates for {', '.join(hosts)}, valid for {days} days:")
    for path, what in _contents(files).items():
        typer.echo(f"  {path}  {what}")
    typer.echo("Start a server with them:")
    typer.echo(f"  {_server_command(folder, files)}")
    typer.echo("and check that it answers:")
    ours = {"--tls-ca": files.ca, "--tls-cert": files.client_cert, "--tls-key": files.client_key}
    typer.echo(f"  natty doctor --server tls://localhost:4222 {_join(ours)}")


def _server_command(folder: Path, files: TLSFiles) -> str:
    if (folder / CONFIGURATION).exists():
        return f"cd {shlex.quote(str(folder))} && nats-server -c {CONFIGURATION}"
    flags = {"--tlscacert": files.ca, "--tlscert": files.server_cert, "--tlskey": files.server_key}
    return f"nats-server -js --tlsverify {_join(flags)}"


def _contents(files: TLSFiles) -> dict[Path, str]:
    return {
        files.ca: "the CA's certificate, to trust",
        files.server_cert: "the server's certificate",
        files.server_key: "the server's key (keep it secret)",
        files.client_cert: "a client's certificate",
        files.client_key: "the client's key (keep it secret)",
    }


def _join(flags: dict[str, Path]) -> str:
    return " ".join(f"{flag} {shlex.quote(str(path))}" for flag, path in flags.items())

"""Makes the secrets of docker-compose.yml, once, in volumes: certificates, and secrets of the store, Spark and pages.

    python make_secrets.py            makes them if there are none; checks that the certificates are still valid
    python make_secrets.py --renew    replaces all of them; then restart all services

Nothing is written outside of the volumes. Each service mounts only those volumes that it needs.
"""

import argparse
import os
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

from capture.spark.options import as_properties
from natty.cli.tls import COMPOSE_HOSTS
from natty.config.tls import DEV_HOSTS, DevCA, expiries
from natty.errors import TLSError

ROOT = Path("/secrets")
DAYS = 365
MASTER = "spark://spark-master:7077"
RENEW = "docker compose run --rm secrets --renew && docker compose restart"


def write_secret(path: Path, content: str | bytes) -> None:
    """Replace a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make(root: Path) -> None:
    """Make everything; the last file of all, the token, shows that nothing is missing."""
    (root / "page" / "token").unlink(missing_ok=True)
    authority = DevCA.create("natty docker-compose CA", days=DAYS)
    authority.write(root / "tls", hosts=[*DEV_HOSTS, *COMPOSE_HOSTS], days=DAYS, force=True)
    make_spark(root / "spark", authority)
    key_id, key = f"natty-{secrets.token_hex(8)}", secrets.token_hex(32)
    store = f"AWS_ACCESS_KEY_ID={key_id}\nAWS_SECRET_ACCESS_KEY={key}\nAWS_REGION=us-east-1\n"
    write_secret(root / "store" / "s3.env", store)
    write_secret(root / "page" / "token", secrets.token_urlsafe(32))


def make_spark(folder: Path, authority: DevCA) -> None:
    """Make the settings of driver, master, worker and executors: a secret, TLS, encrypted temporary files."""
    certificate = authority.issue("spark", hosts=[host for host in COMPOSE_HOSTS if "spark" in host], days=DAYS)
    write_secret(folder / "key.pem", certificate.key_pem)
    write_secret(folder / "chain.pem", certificate.cert_pem + authority.cert_pem)
    settings = {
        "spark.master": MASTER,
        "spark.master.rest.enabled": "false",  # it accepts jobs from every client, in plain text
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.openSslEnabled": "true",
        "spark.ssl.rpc.privateKey": str(folder / "key.pem"),
        "spark.ssl.rpc.certChain": str(folder / "chain.pem"),
        "spark.io.encryption.enabled": "true",
        "spark.io.encryption.keySizeBits": "256",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
    }
    write_secret(folder / "spark.conf", as_properties(settings))


def check(root: Path, now: datetime) -> str:
    """Return what is wrong with the certificates that exist; "" if nothing is."""
    try:
        until = min(expiries(root / "tls" / "server.pem"))
    except TLSError as error:
        return f"{error} Renew the secrets: {RENEW}"
    if until <= now:
        return f"the certificates expired on {until:%Y-%m-%d}. Renew them: {RENEW}"
    print(f"the secrets exist; the certificates are valid until {until:%Y-%m-%d}")
    return ""


def main() -> None:
    """Make the secrets if they are missing, or if the command line asks for it."""
    parser = argparse.ArgumentParser(description="Make the secrets of docker-compose.yml.")
    parser.add_argument("--renew", action="store_true", help="Replace the existing ones; then restart all services.")
    parser.add_argument("--root", type=Path, default=ROOT, help="Folder of the volumes.")
    given = parser.parse_args()
    if (given.root / "page" / "token").exists() and not given.renew:
        sys.exit(check(given.root, datetime.now(UTC)) or None)
    make(given.root)
    print(f"made new secrets; the certificates are valid for {DAYS} days")


if __name__ == "__main__":
    main()

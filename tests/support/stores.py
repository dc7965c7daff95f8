"""Object store servers for tests: SeaweedFS (S3), Azurite (Azure), rclone (an S3 that ignores conditions).

All are from PyPI except Azurite, which is JavaScript: its Node.js is from PyPI, and npm installs the versions of the
lock file beside this one, once, into the Python environment that runs the tests.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from uuid import uuid4

import npm
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store
from patient import PATIENCE

from natty.config.tls import TLSFiles
from natty.testing import free_ports
from natty.testing.spawner import spawn

START_WITHIN = 2 * PATIENCE  # seconds
KEY_ID, SECRET = "capture-tests", "not-a-secret-for-tests"
ACCOUNT, ACCOUNT_KEY = "capturetests", base64.b64encode(b"not a secret, for tests" * 2).decode()
BUCKET = "lake"
SETTINGS = ("AWS_", "AZURE_", "GOOGLE_")
NOBODY = "http://127.0.0.1:9"  # a dead address for the clouds' credentials services: no test uses a real cloud
AZURITE = Path(__file__).parent / "azurite"


@dataclass
class StoreServer:
    """A running server; `url()` is a separate store in it, `environment` its credentials."""

    scheme: str
    endpoint: str
    ca: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    plain_port: int = 0  # where the same server speaks plain HTTP
    folder: Path = field(default_factory=Path)
    again: Callable[[], subprocess.Popen[bytes]] | None = None  # restarts it with its stored objects

    def restart(self, down: float = 0.0) -> None:
        """Kill it, and restart it after `down` seconds on the same ports. It blocks."""
        assert self.again is not None
        kill(self.process)
        time.sleep(down)
        self.process = self.again()

    def url(self, prefix: str | None = None, **settings: object) -> str:
        """Return a store below a new prefix, or below the given one."""
        prefix = f"with space/p%25/{uuid4().hex}" if prefix is None else prefix
        settings = {"endpoint": self.endpoint, "ca": self.ca, "timeout": f"{PATIENCE:g}", **settings}
        query = "&".join(f"{name}={value}" for name, value in settings.items() if value != "")
        return f"{self.scheme}://{BUCKET}/{prefix}?{query}"


@dataclass
class Program:
    """A child process with its log; it is killed with all processes that it started."""

    command: list[str]
    folder: Path
    environ: dict[str, str]

    def start(self, ready: Callable[[], bool]) -> subprocess.Popen[bytes]:
        """Start it and wait until it is ready; on timeout, fail the test with its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
            process = spawn(self.command, output=output, folder=self.folder, environ={**environ, **self.environ})
        deadline = time.monotonic() + START_WITHIN
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                kill(process)
                pytest.fail(f"{self.command[0]} did not start:\n{self._log.read_text()[-3000:]}", pytrace=False)
            time.sleep(0.05)
        return process

    @property
    def _log(self) -> Path:
        return self.folder / "log"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def program(name: str) -> str:
    """Return the path of a program from a PyPI package."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.fail(f'{name} is not installed; run: pip install "natty-nats[test]"', pytrace=False)
    return found


def answers(endpoint: str, ca: Path) -> bool:
    """Return whether an HTTP server answers at the endpoint."""
    try:
        urllib.request.urlopen(endpoint, context=ssl.create_default_context(cafile=ca), timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running_seaweedfs(folder: Path, tls: TLSFiles) -> Iterator[StoreServer]:
    """SeaweedFS: an S3 server over TLS, and over plain HTTP for a proxy in front of it."""
    names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc", "admin", "https")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    https = ports.pop("https")
    options = [
        "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false", "-master.telemetry=false",
        "-s3.iam=false", f"-bucket={BUCKET}", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock", f"-s3.port.https={https}",
        f"-s3.cert.file={tls.server_cert}", f"-s3.key.file={tls.server_key}",
    ]  # fmt: skip
    for name, port in ports.items():
        part, _, kind = name.partition(".")
        options.append(f"-{part}.port{'.' + kind if kind else ''}={port}")
    environment = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    endpoint = f"https://127.0.0.1:{https}"
    looking = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        client_options={"root_certificate": tls.ca.read_bytes(), "timeout": "5s"},
        retry_config={"max_retries": 0},
    )

    def stores() -> bool:
        try:
            looking.put("ready", b"ready")
        except (BaseError, OSError):
            return False
        return True

    weed = Program([program("weed"), "mini", *options], folder, environment)
    server = StoreServer("s3", endpoint, tls.ca, environment, weed.start(stores), plain_port=ports["s3"], folder=folder)
    server.again = lambda: weed.start(stores)
    try:
        yield server
    finally:
        kill(server.process)
    for port in (*ports.values(), ports["admin"] + 10_000):
        for left in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def seaweedfs(natty_tls: TLSFiles, tmp_path_factory):
    """The S3 server of the session."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs"), natty_tls) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(natty_tls: TLSFiles, tmp_path_factory):
    """Azurite: an Azure Blob server over TLS."""
    node, place = npm.installed(AZURITE)
    main = place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    port = free_ports(1)[0]
    folder = tmp_path_factory.mktemp("azurite")
    command = [node, str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", "data"]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    command += ["--cert", str(natty_tls.server_cert), "--key", str(natty_tls.server_key)]
    endpoint = f"https://127.0.0.1:{port}/{ACCOUNT}"
    process = Program(command, folder, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}).start(
        lambda: answers(endpoint, natty_tls.ca)
    )
    _make_container(endpoint, natty_tls.ca)
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}
    yield StoreServer("az", endpoint, natty_tls.ca, environment, process)
    kill(process)


@pytest.fixture(scope="session")
def rclone(natty_tls: TLSFiles, tmp_path_factory):
    """rclone serve s3: an S3 server that treats every conditional put as an unconditional one."""
    port = free_ports(1)[0]
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "served" / BUCKET).mkdir(parents=True)
    command = [program("rclone"), "serve", "s3", "served", "--addr", f"127.0.0.1:{port}", "--config", "none"]
    command += ["--vfs-cache-mode", "writes", "--cache-dir", "cache"]
    command += ["--cert", str(natty_tls.server_cert), "--key", str(natty_tls.server_key)]
    endpoint = f"https://127.0.0.1:{port}"
    environment = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    process = Program(command, folder, {"RCLONE_AUTH_KEY": f'"{KEY_ID},{SECRET}"'}).start(
        lambda: answers(endpoint, natty_tls.ca)
    )
    yield StoreServer("s3", endpoint, natty_tls.ca, environment, process, folder=folder / "served" / BUCKET)
    kill(process)


def _make_container(endpoint: str, ca: Path) -> None:
    """Create the container, since obstore does not; Azure's Shared Key signs the request."""
    now, version = formatdate(usegmt=True), "2021-08-06"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}"
    signed += "\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {"x-ms-date": now, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=START_WITHIN).close()


@pytest.fixture
def bare_environment(monkeypatch):
    """No settings of a cloud in the environment, and no reachable cloud service for credentials."""
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", NOBODY)
    return monkeypatch


@pytest.fixture
def s3(seaweedfs, bare_environment):
    """The S3 server, with its credentials in the environment."""
    return _entered(seaweedfs, bare_environment)


@pytest.fixture
def azure(azurite, bare_environment):
    """The Azure server, with its credentials in the environment."""
    return _entered(azurite, bare_environment)


@pytest.fixture
def careless_s3(rclone, bare_environment):
    """The S3 server that ignores conditional puts, with its credentials in the environment."""
    return _entered(rclone, bare_environment)


def _entered(server: StoreServer, monkeypatch) -> StoreServer:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server

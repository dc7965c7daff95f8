"""A real nats-server as a child process: started, stopped, killed, paused, restarted, with TLS and JetStream."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, Self

from natty.config.secret_files import make_folder
from natty.config.tls import DEV_HOSTS, DevCA, TLSFiles
from natty.errors import NattyError
from natty.testing.binary import find_server
from natty.testing.server_options import Routes, ServerOptions, connect_options, render
from natty.testing.spawner import free_ports, spawn

STOP_WITHIN = 15.0  # seconds that a graceful stop may take; then the server is killed
POLL_EVERY = 0.02  # seconds between two looks at a starting server
# Log lines of nats-server when it listens and when it serves. Probing the port would leave an error in its log.
READY = ("Listening for client connections", "Server is ready")
LAST_LINES = 15  # of the log, shown when a server dies


class ServerStartError(NattyError):
    """The test server did not start."""


class NatsServer:
    """One nats-server; use it as a context manager, or call `start()` and `close()`.

    Its port, its certificates and its JetStream store survive `stop()`, `kill()` and `restart()`; `close()` removes
    them unless `folder` was given. It dies with this process. The methods block (for milliseconds, `start` and `stop`
    for longer): in a coroutine, call them with `asyncio.to_thread` if other tasks must run meanwhile.
    """

    def __init__(
        self,
        options: ServerOptions | None = None,
        *,
        folder: Path | None = None,
        tls_files: TLSFiles | None = None,
        binary: Path | None = None,
        name: str = "",
        routes: Routes | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self.name = name or self.options.name
        temporary = Path(tempfile.gettempdir()) / f"natty-server-{secrets.token_hex(8)}"
        self.folder = Path(folder or temporary).resolve()
        if folder is None:  # before it is made: a signal may interrupt every line
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        make_folder(self.folder, 0o777 if folder else 0o700)
        self.port = self.options.port or free_ports(1)[0]
        self.tls_files = tls_files or self._make_certificates()
        self._own_folder = folder is None
        self._binary = binary
        self._routes = routes
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    def __repr__(self) -> str:
        return f"<NatsServer {self.name} {self.url} {'alive' if self.alive else 'down'}>"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """`tls://host:port`, or `nats://host:port` for a server without TLS."""
        return f"{'tls' if self.options.tls else 'nats'}://{self.options.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process exists; also while it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, None while the server is down."""
        return self._process.pid if self._process is not None and self.alive else None

    def connect_options(self) -> dict[str, Any]:
        """Return the keywords of `natty.Natty(...)` that connect to this server: `servers` and the TLS files."""
        return connect_options(self.options, self.tls_files, [self.url])

    def log(self) -> str:
        """Return the whole log of the server since its first start."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start and wait until the server is ready; raises `ServerStartError` with its last log lines if it dies."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start the process without waiting. Does nothing if it is alive."""
        if self.alive:
            return
        config = self.folder / "server.conf"
        store = self.folder / "jetstream"
        config.write_text(
            render(self.options, name=self.name, port=self.port, store=store, files=self.tls_files, routes=self._routes)
        )
        self._log_offset = len(self.log())
        command = [str(self._binary or find_server()), "--config", str(config)]
        with (self.folder / "server.log").open("ab") as output:
            self._process = spawn(command, output=output, folder=self.folder, environ=dict(os.environ))

    def wait_ready(self) -> None:
        """Wait until the server logs that it is ready and accepts connections."""
        deadline = time.monotonic() + self.options.start_timeout
        while not all(line in self.recent_log() for line in READY):
            if not self.alive:
                raise ServerStartError(f"nats-server {self.name} died while starting:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerStartError(
                    f"nats-server {self.name} was not ready within {self.options.start_timeout} s:\n{self.last_lines()}"
                )
            time.sleep(POLL_EVERY)

    def stop(self) -> None:
        """Stop gracefully (SIGTERM) and wait; kills a server that takes longer than `STOP_WITHIN`."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused server can't stop
        self._wait()

    def kill(self) -> None:
        """Kill the server (SIGKILL), so that it can't write anything, and wait."""
        self._signal(signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): until `resume()`, connections stay open without answers."""
        self._signal(signal.SIGSTOP)
        if sys.platform == "linux" and (pid := self.pid):  # the other threads run until one has seen the signal
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue after `pause()`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop gracefully and start again, on the same port and store."""
        self.stop()
        self.start()

    def lame_duck(self) -> None:
        """Send SIGUSR2: the server asks its clients to disconnect, then ends.

        It ends after `lame_duck_grace_period` and, if clients remain, `lame_duck_duration` (at least 30 s): settings
        for `ServerOptions.config`.
        """
        self._signal(signal.SIGUSR2)

    def close(self) -> None:
        """Kill the server and remove its temporary folder. Idempotent."""
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make_certificates(self) -> TLSFiles | None:
        if not self.options.tls:
            return None
        hosts = dict.fromkeys([*DEV_HOSTS, self.options.host])
        return DevCA.create().write(self.folder / "tls", hosts=hosts, force=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def recent_log(self) -> str:
        """Return the log since the last start."""
        return self.log()[self._log_offset :]

    def last_lines(self) -> str:
        """Return the end of the log since the last start, for an error message."""
        return "\n".join(self.recent_log().splitlines()[-LAST_LINES:]) or "(it logged nothing)"

"""A JetStream cluster of real nats-servers, with routes over TLS, too."""

import contextlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from natty.config.secret_files import make_folder
from natty.config.tls import DevCA, TLSFiles
from natty.testing.probe import NoAnswerError, ask
from natty.testing.server import NatsServer, ServerStartError
from natty.testing.server_options import Routes, ServerOptions, connect_options
from natty.testing.spawner import free_ports

READY_WITHIN = 60.0  # seconds until every node must answer for JetStream
ASK_WITHIN = 5.0  # seconds for one request to one node
POLL_EVERY = 0.1  # seconds
LEADER_KNOWN = ("JetStream cluster new metadata leader", "Self is new JetStream cluster metadata leader")
PROBE_STREAM = "NATTY_TESTING_READY"


class NatsCluster:
    """`size` servers on one machine; use it as a context manager, or call `start()` and `close()`.

    `cluster[0].kill()` and the other methods of `NatsServer` act on one node. To find a leader, ask JetStream. Stores
    survive restarts; `close()` removes them unless `folder` was given.
    """

    def __init__(
        self,
        size: int = 3,
        options: ServerOptions | None = None,
        *,
        folder: Path | None = None,
        tls_files: TLSFiles | None = None,
        binary: Path | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self.folder = Path(folder).resolve() if folder else Path(tempfile.mkdtemp(prefix="natty-cluster-"))
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        make_folder(self.folder)
        self._own_folder = folder is None
        self.tls_files = tls_files or self._make_certificates()
        self.servers = self._make_servers(size, binary)

    def __repr__(self) -> str:
        alive = sum(server.alive for server in self.servers)
        return f"<NatsCluster {self.options.name} {alive} of {len(self.servers)} alive>"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.servers)

    def __getitem__(self, index: int) -> NatsServer:
        return self.servers[index]

    def __iter__(self) -> Iterator[NatsServer]:
        return iter(self.servers)

    @property
    def urls(self) -> list[str]:
        """The client URL of every node."""
        return [server.url for server in self.servers]

    def connect_options(self) -> dict[str, Any]:
        """Return the keywords of `natty.Natty(...)` that connect to this cluster, with all its URLs."""
        return connect_options(self.options, self.tls_files, self.urls)

    def start(self) -> Self:
        """Start every node that is down, and wait until the cluster is ready."""
        for server in self.servers:
            server.launch()
        self.wait_ready()
        return self

    def stop(self) -> None:
        """Stop every node gracefully."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """Kill every node and remove the temporary folder. Idempotent."""
        for server in self.servers:
            server.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def wait_ready(self) -> None:
        """Wait until every live node serves, knows the JetStream meta leader and can place a full stream.

        Raises `ServerStartError` if that takes longer than `READY_WITHIN`.
        """
        deadline = time.monotonic() + READY_WITHIN
        alive = [server for server in self.servers if server.alive]
        for server in alive:
            server.wait_ready()
        if not self.options.jetstream:
            return
        for server in alive:
            while not any(line in server.recent_log() for line in LEADER_KNOWN):
                self._check(server, deadline)
                time.sleep(POLL_EVERY)
        if self.options.authorization:
            return  # the logs must suffice: there is no known user for a request
        for server in alive:
            while not self._can_place(server, replicas=len(alive)):
                self._check(server, deadline)
                time.sleep(POLL_EVERY)

    def _check(self, server: NatsServer, deadline: float) -> None:
        if not server.alive:
            raise ServerStartError(f"Node {server.name} died while the cluster was forming:\n{server.last_lines()}")
        if time.monotonic() > deadline:
            raise ServerStartError(
                f"The JetStream cluster was not ready within {READY_WITHIN} s; {server.name} logged last:\n"
                f"{server.last_lines()}"
            )

    def _can_place(self, server: NatsServer, *, replicas: int) -> bool:
        """Create and delete a stream on all nodes: only that proves that the next one can be created."""
        stream = {
            "name": PROBE_STREAM,
            "subjects": [PROBE_STREAM],
            "storage": "memory",
            "retention": "limits",
            "num_replicas": replicas,
        }
        with contextlib.suppress(NoAnswerError):
            created = self._ask(server, f"$JS.API.STREAM.CREATE.{PROBE_STREAM}", stream)
            deleted = self._ask(server, f"$JS.API.STREAM.DELETE.{PROBE_STREAM}", None)
            return "error" not in created and "error" not in deleted
        return False

    def _ask(self, server: NatsServer, subject: str, question: object) -> dict[str, Any]:
        return ask(self.options, server.port, self.tls_files, subject, question, timeout=ASK_WITHIN)

    def _make_certificates(self) -> TLSFiles | None:
        return DevCA.create().write(self.folder / "tls", force=True) if self.options.tls else None

    def _make_servers(self, size: int, binary: Path | None) -> list[NatsServer]:
        ports = free_ports(2 * size)
        peers = tuple(ports[size:])
        return [
            NatsServer(
                replace(self.options, port=self.options.port + index if self.options.port else ports[index]),
                folder=self.folder / f"{self.options.name}-{index + 1}",
                tls_files=self.tls_files,
                binary=binary,
                name=f"{self.options.name}-{index + 1}",
                routes=Routes(cluster=self.options.name, port=peers[index], peers=peers),
            )
            for index in range(size)
        ]

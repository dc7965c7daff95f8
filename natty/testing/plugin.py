"""Fixtures for pytest: real servers with TLS and JetStream. pytest loads them automatically if natty is installed.

Session-scoped: `natty_ca`, `natty_tls`, `nats_server`, `nats_cluster`. Function-scoped: `natty_name`, `natty_proxy`,
`natty`. Servers start when the first test requests them. Asynchronous fixtures need pytest-asyncio (in strict or auto
mode).
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from natty.client import Natty
    from natty.testing import DevCA, NatsCluster, NatsServer, Proxy, TLSFiles

try:
    from pytest_asyncio import fixture as _fixture
except ModuleNotFoundError:  # then pytest reports, in tests that use one, that coroutine fixtures need a plugin
    _fixture = pytest.fixture  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., object])


def async_fixture(function: Function) -> Function:
    """Make a fixture of an asynchronous generator, in the strict and in the auto mode of pytest-asyncio."""
    return cast("Function", _fixture(function))


OPTION = "--nats-server-bin"
# Seconds, longer than for other clients: machines that run tests sometimes stall.
PATIENCE: dict[str, Any] = {"connect_timeout": 60.0, "timeout": 30.0, "ping_interval": 30.0}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--nats-server-bin` and the setting `nats_server_bin`."""
    group = parser.getgroup("natty", "natty: real NATS servers")
    text = "path of nats-server (default: $NATS_SERVER_BIN, PATH, the package nats-server-bin)"
    group.addoption(OPTION, default=None, metavar="PATH", help=text)
    parser.addini("nats_server_bin", text, default="")


@pytest.fixture(scope="session")
def nats_server_binary(pytestconfig: pytest.Config) -> "Path":
    """The path of nats-server. If it is missing, tests that need it fail with what to do; they are never skipped."""
    from natty.testing.binary import ENVIRONMENT, ServerBinaryError, find_server, server_version

    named = pytestconfig.getoption(OPTION, default=None) or pytestconfig.getini("nats_server_bin")
    try:
        binary = find_server({**os.environ, **({ENVIRONMENT: named} if named else {})})
        server_version(binary)
    except ServerBinaryError as error:
        pytest.fail(str(error), pytrace=False)
    return binary


@pytest.fixture(scope="session")
def natty_ca() -> "DevCA":
    """The authority that signed `natty_tls`, to issue more certificates that `nats_server` trusts."""
    from natty.testing import DevCA

    return DevCA.create("natty test CA")


@pytest.fixture(scope="session")
def natty_tls(natty_ca: "DevCA", tmp_path_factory: pytest.TempPathFactory) -> "TLSFiles":
    """The certificates of `nats_server` and `nats_cluster`, and of a client."""
    return natty_ca.write(tmp_path_factory.mktemp("natty-tls"))


@pytest.fixture(scope="session")
def nats_server(
    natty_tls: "TLSFiles", nats_server_binary: "Path", tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[NatsServer]":
    """One server for the session: mutual TLS, JetStream. If you stop or pause it, start it again."""
    from natty.testing import NatsServer

    with NatsServer(
        folder=tmp_path_factory.mktemp("nats-server"), tls_files=natty_tls, binary=nats_server_binary
    ) as server:
        yield server


@pytest.fixture(scope="session")
def nats_cluster(
    natty_tls: "TLSFiles", nats_server_binary: "Path", tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[NatsCluster]":
    """A cluster of three for the session: mutual TLS, also on routes, JetStream. `start()` restarts killed nodes."""
    from natty.testing import NatsCluster

    with NatsCluster(
        folder=tmp_path_factory.mktemp("nats-cluster"), tls_files=natty_tls, binary=nats_server_binary
    ) as cluster:
        yield cluster


@pytest.fixture
def natty_name() -> Callable[[str], str]:
    """Return a function that makes a name unique: for streams, buckets and durables on the shared server."""

    def name(base: str) -> str:
        return f"{base}_{secrets.token_hex(4)}"

    return name


@async_fixture
async def natty_proxy(nats_server: "NatsServer") -> "AsyncIterator[Proxy]":
    """A proxy in front of `nats_server`: connect with `Natty(**natty_proxy.options)`, then cause faults."""
    from natty.testing import Proxy

    async with Proxy.to(nats_server) as proxy:
        yield proxy


@async_fixture
async def natty(nats_server: "NatsServer") -> "AsyncIterator[Natty]":
    """A client of `nats_server` with longer timeouts than the defaults; it is closed after the test."""
    from natty import Natty

    async with Natty(**nats_server.connect_options(), **PATIENCE) as client:
        yield client

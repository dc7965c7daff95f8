"""The contract with nats-py: every name of it that natty uses, what it takes, and that it is there.

What the names do on a connection is in tests/integration/natty/wire/test_nats_py_sessions.py.
"""

import ast
import asyncio
import inspect
import re
import socket
import ssl
from importlib.metadata import version
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error

from natty.config.settings import Config
from natty.errors import TLSError
from natty.wire import nats_py
from natty.wire.nats_py import connect_options

METHODS = {  # of the client: those we override or call, as (coroutine function, signature)
    "_select_next_server": (True, "(self) -> 'None'"),
    "_connect_to_server": (True, "(self, s: 'Srv') -> 'None'"),
    "_process_info": (True, "(self, info: 'Dict[str, Any]', initial_connection: 'bool' = False) -> 'None'"),
    "_connect_command": (False, "(self) -> 'bytes'"),
    "_read_loop": (True, "(self) -> 'None'"),
    "_ping_interval": (True, "(self) -> 'None'"),
    "_flusher": (True, "(self) -> 'None'"),
}
CLIENT = {"_server_info": {}, "_server_pool": [], "_current_server": None, "_transport": None}  # of a new client
TRANSPORT = {"_io_reader": None, "_io_writer": None}  # of a new transport
OF_ASYNCIO = {"_over_ssl", "_eof", "_protocol"}


def differences(client_class=Client, transport_class=TcpTransport):
    """Return a sentence for each name that nats-py has no more, or has otherwise."""
    found = []
    for name, expected in METHODS.items():
        method = getattr(client_class, name, None)
        if not callable(method):
            found.append(f"nats-py's client has no method {name}")
        elif (now := (inspect.iscoroutinefunction(method), str(inspect.signature(method)))) != expected:
            found.append(f"nats-py's client has another {name}: {now} instead of {expected}")
    for thing, attributes in ((client_class(), CLIENT), (transport_class(), TRANSPORT)):
        for name, first in attributes.items():
            if not hasattr(thing, name):
                found.append(f"nats-py's {type(thing).__name__} has no attribute {name}")
            elif getattr(thing, name) != first:
                found.append(f"nats-py's {type(thing).__name__} begins with another {name}: {getattr(thing, name)!r}")
    known = inspect.signature(client_class.connect).parameters
    found += [f"nats-py's connect() has no parameter {name}" for name in all_options() if name not in known]
    return found


def all_options():
    secure = Config(tls=True, tls_first=True)
    return connect_options(secure, "tls://localhost:4222")


def test_the_installed_nats_py_has_all_that_is_used_of_it():
    assert differences() == []


def test_the_contract_names_every_private_name_that_is_used():
    tree = ast.parse(Path(nats_py.__file__).read_text())
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    set_by_us = {"_config", "_signature", "_ask_login", "_ask", "_called"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    used |= ours & {name for name in dir(Client) if name.startswith("_") and not name.startswith("__")}
    not_private = {name for name in used if name.startswith("__")} | (ours - set(dir(Client)))
    assert used - not_private - set_by_us == METHODS.keys() | CLIENT.keys() | TRANSPORT.keys() | OF_ASYNCIO


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_gone_or_takes_something_else_is_named(name):
    gone = type("Gone", (Client,), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Client, name)
        assert differences(gone) == [f"nats-py's client has no method {name}"]
    other = type("Other", (Client,), {name: lambda self, more: None})
    (sentence,) = differences(other)
    assert sentence.startswith(f"nats-py's client has another {name}: (False, '(self, more)')")


@pytest.mark.parametrize("name", CLIENT)
def test_an_attribute_of_the_client_that_is_gone_is_named(name):
    class Renamed(Client):
        def __init__(self):
            super().__init__()
            delattr(self, name)

    assert differences(Renamed) == [f"nats-py's Renamed has no attribute {name}"]


@pytest.mark.parametrize("name", TRANSPORT)
def test_an_attribute_of_the_transport_that_is_gone_or_begins_otherwise_is_named(name):
    class Renamed(TcpTransport):
        def __init__(self):
            super().__init__()
            delattr(self, name)

    class Other(TcpTransport):
        def __init__(self):
            super().__init__()
            setattr(self, name, "a stream")

    assert differences(transport_class=Renamed) == [f"nats-py's Renamed has no attribute {name}"]
    assert differences(transport_class=Other) == [f"nats-py's Other begins with another {name}: 'a stream'"]


def test_a_parameter_of_connect_that_is_gone_is_named():
    class Other(Client):
        async def connect(self, servers, name, **options): ...

    assert "nats-py's connect() has no parameter tls_handshake_first" in differences(Other)


def test_nats_py_raises_errors_of_one_root():
    assert {kind for kind in (Error, *Error.__subclasses__()) if not issubclass(kind, Exception)} == set()


async def test_asyncio_still_has_what_a_session_uses_of_its_streams():
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        assert isinstance(writer._protocol, asyncio.StreamReaderProtocol)
        assert (writer._protocol._over_ssl, reader._eof) == (False, False)
        reader.feed_eof()
        assert reader._eof is True
        writer.close()
        await writer.wait_closed()


def test_the_minor_version_that_is_required_is_the_one_that_the_tests_run_on():
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    (least, below) = re.findall(r'"nats-py>=([\d.]+),<([\d.]+)"', text)[0]
    major, minor = map(int, version("nats-py").split(".")[:2])
    assert (least, below) == (f"{major}.{minor}", f"{major}.{minor + 1}")


def test_nats_py_never_reconnects_by_itself_and_verifies_the_server(natty_tls):
    files = {"tls_ca": str(natty_tls.ca), "tls_cert": str(natty_tls.client_cert), "tls_key": str(natty_tls.client_key)}
    options = connect_options(Config(**files), "tls://db.example:4222")
    assert options["allow_reconnect"] is False
    assert (options["tls"].verify_mode, options["tls"].check_hostname) == (ssl.CERT_REQUIRED, True)
    assert options["tls_hostname"] == "db.example"
    assert connect_options(Config(**files, tls_hostname="other"), "tls://db.example:1")["tls_hostname"] == "other"


def test_without_tls_no_context_is_made():
    assert "tls" not in connect_options(Config(), "nats://a:1")


def test_a_missing_ca_file_is_named():
    with pytest.raises(TLSError, match=r"nowhere\.pem"):
        connect_options(Config(tls_ca="/nowhere.pem"), "tls://a:1")

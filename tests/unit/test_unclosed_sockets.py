"""Python leaves a socket open if the server resets its connection before the TLS handshake begins.

`SSLSocket._create` asks for the peer's address then, and raises without closing (Python 3.11 to 3.13). A killed server
does this to a client on a busy machine. pyproject.toml ignores the ResourceWarning of these sockets alone.
"""

import gc
import re
import socket
import ssl
import struct
import warnings

import pytest

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def begin_what_the_server_has_reset():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        accepted.close()
        with pytest.raises(ConnectionResetError):
            ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    gc.collect()


def test_a_reset_before_the_handshake_fails_no_test():
    begin_what_the_server_has_reset()


def test_the_setting_is_needed_and_names_only_sockets_without_a_peer(pytestconfig):
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        begin_what_the_server_has_reset()
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname())
    without_peer, with_peer = [str(one.message) for one in left_open]
    _, ignored = pytestconfig.getini("filterwarnings")
    pattern = re.fullmatch("ignore:(.*):ResourceWarning", ignored)[1]
    assert re.match(pattern, without_peer)
    assert not re.match(pattern, with_peer.replace("socket.socket", "ssl.SSLSocket"))

"""Sends one request to a server over plain sockets, without natty, because these servers are there to test natty."""

import json
import socket
import ssl
from contextlib import ExitStack
from io import BufferedRWPair
from typing import Any

from natty.config.tls import TLSFiles, client_context
from natty.errors import NattyError
from natty.testing.server_options import ServerOptions, tls_options

_INBOX = "_INBOX.natty-testing"


class NoAnswerError(NattyError):
    """The server did not answer this request."""


def ask(
    options: ServerOptions, port: int, files: TLSFiles | None, subject: str, question: object = None, *, timeout: float
) -> dict[str, Any]:
    """Return the JSON answer to a request on `subject`; raises `NoAnswerError` if there is none in `timeout` seconds.

    Authenticates as the first of `options.users`, if there are any.
    """
    try:
        with ExitStack() as stack:
            connection = socket.create_connection((options.host, port), timeout)
            stack.callback(connection.close)
            if options.tls:
                connection = stack.enter_context(_secure(connection, options, files))
            stream = stack.enter_context(connection.makefile("rwb"))
            stream.write(_request(options, subject, b"" if question is None else json.dumps(question).encode()))
            stream.flush()
            return _answer(stream)
    except (OSError, ValueError) as error:
        raise NoAnswerError(f"Port {port} did not answer on {subject}: {error}.") from error


def _secure(connection: socket.socket, options: ServerOptions, files: TLSFiles | None) -> ssl.SSLSocket:
    given = tls_options(options, files)
    context = client_context(ca=given["tls_ca"], cert=given["tls_cert"], key=given["tls_key"])
    if not options.handshake_first:
        _read_info(connection)
    return context.wrap_socket(connection, server_hostname=options.host)


def _read_info(connection: socket.socket) -> None:
    """Read the server's greeting byte by byte: the bytes after it are TLS."""
    while (byte := connection.recv(1)) != b"\n":
        if not byte:
            raise OSError("the connection was closed")


def _request(options: ServerOptions, subject: str, payload: bytes) -> bytes:
    login: dict[str, object] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    if options.users:
        user, password = next(iter(options.users.items()))
        login |= {"user": user, "pass": password}
    head = f"CONNECT {json.dumps(login)}\r\nSUB {_INBOX} 1\r\nPUB {subject} {_INBOX} {len(payload)}\r\n"
    return head.encode() + payload + b"\r\n"


def _answer(stream: BufferedRWPair) -> dict[str, Any]:
    while line := stream.readline():
        verb, *arguments = line.split()
        if verb == b"MSG":
            answer: dict[str, Any] = json.loads(stream.read(int(arguments[-1])))
            return answer
        if verb == b"HMSG":  # only a status, "no responders", has headers here
            raise OSError("no responders")
        if verb == b"-ERR":
            raise OSError(line.decode(errors="replace").strip())
        if verb == b"PING":
            stream.write(b"PONG\r\n")
            stream.flush()
    raise OSError("the connection was closed")

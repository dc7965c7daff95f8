"""The errors of natty, and text that can be part of their messages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

UNREADABLE = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""The errors of msgspec for bytes from outside: not JSON, not UTF-8, too large numbers, nested too deeply."""
_ABOUT = re.compile(r"(?:STREAM|CONSUMER|DIRECT)\.(?:MSG\.)?[A-Z]+\.([^.]+)(?:\.([^.]+))?")  # a stream and a consumer
_LONE = re.compile("[\ud800-\udfff]")


def legible(text: str) -> str:
    r"""Return text that everything can encode: a byte that is not UTF-8 reads \xff, another lone surrogate \ud800.

    `names` describes how the bytes come into the text.
    """
    return text if text.isascii() else _LONE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"\\x{point - 0xDC00:02x}" if 0xDC80 <= point <= 0xDCFF else f"\\u{point:04x}"


def how_to_install(extra: str) -> str:
    """Return the end of a sentence that says how to install an extra: "run: …", with the command.

    The extra comes from the folder, the file or the repository that natty was installed from, otherwise from PyPI.
    Without pip in this environment (uv and pipx make such ones), only the extra is named.
    """
    if find_spec("pip") is None:
        return f"install the extra {extra}: natty-nats[{extra}]"
    from importlib.metadata import PackageNotFoundError, distribution  # here: it takes longer than the rest of natty

    try:
        origin = json.loads(distribution("natty-nats").read_text("direct_url.json") or "{}")  # PEP 610
    except PackageNotFoundError:
        origin = {}
    return f"run: {_pip()} install {_requirement(origin, extra)}"


def _requirement(origin: dict[str, Any], extra: str) -> str:
    """Return the requirement to give to pip: `origin` is what pip recorded of the installation (PEP 610)."""
    package = f"natty-nats[{extra}]"
    folder = Path(unquote(urlsplit(origin["url"]).path)) if "dir_info" in origin else None
    if folder is not None and folder.is_dir():
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'{editable}"{"." if folder == _working_folder() else folder}[{extra}]"'
    if "archive_info" in origin:
        return f'"{package} @ {origin["url"]}"'
    if repository := origin.get("vcs_info"):
        return f'"{package} @ {repository["vcs"]}+{origin["url"]}@{repository["commit_id"]}"'
    return f'"{package}"'


def _pip() -> str:
    """Return the pip of this Python: the one on the PATH may install for another."""
    python, found = Path(sys.executable), shutil.which("pip")
    if found and Path(found).parent == python.parent:
        return "pip"
    folder = _working_folder()
    here = python.relative_to(folder) if folder and python.is_relative_to(folder) else python
    return f"{shlex.quote(str(here))} -m pip"


def _working_folder() -> Path | None:
    """Return the working folder; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


class NattyError(Exception):
    """Something went wrong in natty."""

    def __init__(self, message: str = "") -> None:
        super().__init__(legible(message) or (self.__doc__ or type(self).__name__).strip().splitlines()[0])


class ConfigError(NattyError):
    """The configuration can't be used."""


class TLSError(NattyError):
    """TLS could not be set up: a certificate or a key is missing, unreadable, expired or doesn't fit."""


class ConnectError(NattyError):
    """No server could be reached."""


class AuthorizationError(ConnectError):
    """The server refused these credentials."""


class TLSRequiredError(ConnectError, TLSError):
    """TLS is required and the server does not offer it; nothing was sent in plain text."""


class TLSHandshakeError(ConnectError, TLSError):
    """Server and client could not agree on TLS: one of them does not trust the other's certificate."""


class TLSClosedError(TLSHandshakeError):
    """The server closed the connection during TLS setup without a reason: it is ending, or refuses our certificate."""


class PayloadTooLargeError(NattyError):
    """The message is larger than the server's max_payload; nothing was sent."""


class BadSubjectError(NattyError):
    """The subject is not valid for publishing; nothing was sent."""


class WrongLoopError(NattyError, RuntimeError):
    """The client was used from another event loop, thread or process than the one that opened it."""


class ThreadsEndedError(NattyError, RuntimeError):
    """The main thread has ended: Python starts no more handlers in threads."""


class NotConnectedError(NattyError):
    """The client is not connected to a server at the moment; nothing was sent."""


class SessionEndedError(NattyError, ConnectionResetError):
    """The server ended the session and gave a reason."""


class ConnectionClosedError(NotConnectedError):
    """The connection was closed."""


class RequestTimeoutError(NattyError, TimeoutError):
    """The server did not answer in time."""


class NoRespondersError(NattyError):
    """There is no subscriber on this subject."""


class UnsupportedError(NattyError):
    """This server is too old for this feature."""


class JetStreamError(NattyError):
    """JetStream refused a request.

    `code` is the HTTP-like status, `err_code` the server's own number, which identifies the error; its text does not.
    """

    def __init__(self, message: str = "", *, code: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code


class JetStreamNotEnabledError(JetStreamError):
    """JetStream is not enabled on this server or account; start the server with `jetstream` in its configuration."""


class DomainUnreachableError(JetStreamError):
    """No server answers for JetStream's other domain or account: check its name, and the link to it."""


class StreamNotFoundError(JetStreamError):
    """There is no such stream."""


class ConsumerNotFoundError(JetStreamError):
    """There is no such consumer."""


class StreamExistsError(JetStreamError):
    """A stream of this name exists with another configuration; the difference is in the message."""


class ConsumerExistsError(JetStreamError):
    """A consumer of this name exists with another configuration; the difference is in the message."""


class WrongLastSequenceError(JetStreamError):
    """Another client wrote in between: the last sequence is not the expected one."""


class PublishError(NattyError):
    """A message was not stored; `subject` and `msg_id` name it.

    `data` is its payload, if it was published in the background. `in_doubt`: it was sent, and may be stored or not.
    """

    def __init__(
        self, message: str = "", *, subject: str = "", msg_id: str = "", data: bytes = b"", in_doubt: bool = False
    ) -> None:
        super().__init__(message)
        self.subject = subject
        self.msg_id = msg_id
        self.data = data
        self.in_doubt = in_doubt


def name_missing(kind: type[JetStreamError], subject: str) -> str:
    """Return the sentence for the missing stream or consumer that an API request names; "" for other errors."""
    match = _ABOUT.search(subject)
    if match is None or kind not in (StreamNotFoundError, ConsumerNotFoundError):
        return ""
    stream, consumer = match[1], match[2]
    if kind is StreamNotFoundError:
        return f"there is no stream {stream}: check the name, or create it with create_stream or ensure_stream"
    missing = f"consumer {consumer}" if consumer else "such consumer"
    return f"stream {stream} has no {missing}: check the name, or create it with create_consumer or ensure_consumer"


class BucketNotFoundError(StreamNotFoundError):
    """There is no such bucket."""


class KeyNotFoundError(NattyError):
    """There is no such key in the bucket."""


class KeyExistsError(NattyError):
    """The key exists already."""


class RevisionConflictError(NattyError):
    """Another client changed the key: its revision is not the expected one.

    `current` is the revision found instead; 0 if the key is gone, or the revision is unknown.
    """

    def __init__(self, message: str = "", *, current: int = 0) -> None:
        super().__init__(message)
        self.current = current


class GroupNotFoundError(NattyError):
    """There is no such consumer group."""


class GroupExistsError(NattyError):
    """A consumer group of this name exists with other settings, or a stream or consumer has a name that it needs."""


class BadRecordError(NattyError):
    """A record that other clients may write can't be read: it is damaged, too large, or of another kind."""


class BadGroupError(NattyError):
    """The consumer group is not valid: its record, or the requested change, breaks a rule."""


class LeadershipLostError(NattyError):
    """This node is not the leader any more: its lease expired, or another node took it over."""


class StaleTokenError(LeadershipLostError):
    """The server refused a commit: another leader's term has begun."""

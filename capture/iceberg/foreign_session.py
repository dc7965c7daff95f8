"""The HTTP session of a REST catalog: it sends credentials only where they are configured to go, and reads no flood."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urljoin, urlsplit

from requests import PreparedRequest, ReadTimeout, Response, Session

from capture.errors import CatalogError
from capture.iceberg.foreign import HIDDEN, Address

LARGEST = 64 * 1024**2
"""Bytes of an answer, after decompression."""
PIECE = 64 * 1024
"""Bytes that are read at once, at the most."""
OAUTH = "oauth2-server-uri"

Origin = tuple[str, str, int | None]
"""Scheme, host and port of a URL."""


def guard(session: Session, address: Address) -> None:
    """Let a session send requests only to the origins of `uri` and `oauth2-server-uri`, and follow no redirect.

    An answer must be complete within the time limit, and have at most LARGEST bytes: ReadTimeout, CatalogError. Every
    request of a session goes through its `send`, also those for a token.
    """
    send, urls = session.send, [address.properties[name] for name in ("uri", OAUTH) if name in address.properties]
    origins = {_origin_of(url) for url in urls}

    def send_guarded(request: PreparedRequest, **options: Any) -> Response:
        _check(request.url or "", origins, address)
        limit = time.monotonic() + address.timeout
        options |= {"timeout": address.timeout, "stream": True}
        if address.ca:
            options["verify"] = address.ca  # in each request, since REQUESTS_CA_BUNDLE overrides a session's
        response = send(request, **options)
        try:
            if response.is_redirect:
                _check(urljoin(request.url or "", response.headers["location"]), set(), address)
            body = _read(response, limit, address)
        except BaseException:
            response.close()
            raise
        response._content = body if response.ok else _hide_token(request, body)
        response._content_consumed = True
        response.encoding = "utf-8"  # otherwise requests guesses it, which takes minutes for a large answer
        return response

    session.send = send_guarded  # type: ignore[method-assign]
    session.get_redirect_target = lambda resp: None  # type: ignore[method-assign]  # it would read the body of each


def _check(url: str, origins: set[Origin], address: Address) -> None:
    if (origin := _origin_of(url)) not in origins:
        scheme, host, port = origin
        raise CatalogError(
            f"{address} leads this node to {scheme}://{host[:256]}{f':{port}' if port else ''}, which gets no"
            f" credentials: if that is right, write it as uri into [table.catalog], or as {OAUTH} into its properties"
        )


def _origin_of(url: str) -> Origin:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError as error:
        raise CatalogError(f"the URL {url[:256]!r} can't be read: {error}") from error
    return parts.scheme, parts.hostname or "", port


def _hide_token(request: PreparedRequest, body: bytes) -> bytes:
    """Return what a server says of a failure, without the token that the request had: pyiceberg may have fetched it."""
    token = str(request.headers.get("Authorization", "")).partition(" ")[2].encode()
    return body.replace(token, HIDDEN.encode()) if token else body


def _read(response: Response, limit: float, address: Address) -> bytes:
    """Return the body. Each piece is what has arrived: a server that sends a byte a second is given up, too."""
    pieces, size = [], 0
    while piece := response.raw.read1(PIECE, decode_content=True):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST:
            raise CatalogError(f"{address} sends more than {LARGEST:,} bytes in one answer: it was not read")
        if time.monotonic() > limit:
            raise ReadTimeout(f"its answer was not complete within {address.timeout:g} s")
    return b"".join(pieces)

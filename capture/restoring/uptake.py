"""Uploads a stream archive: nats-server 2.15 and later restores NATSARC1 by STREAM.RESTORE.

See ADR "JetStream Stream Backup and Restore V2". The server creates the stream when it gets the first bytes, and keeps
an incomplete stream if the upload stops. So the stream accepts no messages until it is whole: its only subject is
unknown to other clients, and a token in its metadata names the restore that it belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

import msgspec

from capture.errors import RestoreError
from capture.restoring.archive import KEEP_ALIVE
from natty import JetStreamError, Natty, NattyError, StreamNotFoundError
from natty.errors import UNREADABLE, RequestTimeoutError
from natty.wire.message import RawMessage, status_of

MARK = "capture.restore"
"""Metadata key of an incomplete stream: its value is the token of the restore that makes it."""
HIDDEN = "_capture.restore."
"""Prefix of the only subject of such a stream."""
CHUNK_BYTES = 256 << 10
IN_FLIGHT = 16  # chunks without an answer
SILENCE = 1.0  # seconds after which something is sent: a server gives up after five without data
HEARD_WITHIN = 5.0  # seconds in which the server waits for the first chunk
ANSWER_WITHIN = 60.0  # seconds, for a chunk
END_WITHIN = 600.0  # seconds, for the end: the server may have much to write
POLL = 0.05  # seconds
MISPLACED = "expected sequence does not match store"
"""The server's reason if a new stream is not empty: the number of its error is that of every failed restore."""
NOBODY = 503  # the status of an answer if no server listens
SERVERS_OWN = "_nats."
"""Prefix of metadata that servers set themselves."""
LEVEL = "_nats.req.level"
"""The API level that a stream or consumer needs. A server with a lower one takes it offline, and does not load it.

The server does not set it again when it restores a stream."""
LIFTED: Mapping[str, Any] = {
    "max_age": 0,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "discard_new_per_subject": False,
    "sealed": False,
    "allow_msg_ttl": False,
    "subject_delete_marker_ttl": 0,
}
"""Settings that would remove or refuse messages during the upload; restored when all are stored."""
SILENCED = ("sources", "republish")
"""Settings that would add other messages, or republish them."""


class LeftoverFilesError(RestoreError):
    """The new stream has messages of a deleted stream of its name.

    nats-server (2.15.1 and before) renames the folder of a deleted file stream, and removes it in the background. If
    another stream of this name is deleted before that ends, its folder stays, and the next stream of the name has its
    messages.
    """

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"{reason}. The server still has files of a deleted stream {stream}, which it removes in the background:"
            " restore again"
        )


def incomplete_config(config: Mapping[str, Any], token: str) -> dict[str, Any]:
    """Return the configuration of an incomplete stream: without limits, and without subjects to publish on."""
    kept = {name: value for name, value in config.items() if name not in SILENCED}
    lifted = {name: value for name, value in LIFTED.items() if name in config}
    hidden = {} if config.get("mirror") else {"subjects": [HIDDEN + token]}
    return kept | lifted | hidden | {"metadata": own_metadata(config) | {MARK: token}}


def own_metadata(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration's metadata without the server's own keys, except for the level that it needs."""
    metadata = config.get("metadata") or {}
    return {name: value for name, value in metadata.items() if name == LEVEL or not name.startswith(SERVERS_OWN)}


async def upload(
    natty: Natty,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    pieces: AsyncGenerator[bytes, None],
) -> None:
    """Create a stream from an archive, whose bytes come in pieces of whole chunks. RestoreError if the server refuses.

    It waits for the first piece before it sends the request. LeftoverFilesError if the new stream has old messages.
    """
    upcoming: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(pieces, None))
    try:
        await asyncio.wait({upcoming})
        upcoming.result()
        answer = await natty.jetstream.request(f"STREAM.RESTORE.{config['name']}", {"config": config, "state": state})
        async with _Chunks(natty, answer["deliver_subject"]) as chunks:
            while True:
                while not (await asyncio.wait({upcoming}, timeout=SILENCE))[0]:
                    await chunks.send(KEEP_ALIVE)
                piece = upcoming.result()
                if piece is None:
                    break
                upcoming = asyncio.ensure_future(anext(pieces, None))  # the next piece is made while this one is sent
                await chunks.send(piece)
            await chunks.end()
    except JetStreamError as error:
        raise RestoreError(f"the server does not take stream {config['name']}: {error}") from error
    except RestoreError as error:
        if MISPLACED in str(error):
            raise LeftoverFilesError(config["name"], str(error)) from error
        raise
    finally:
        upcoming.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await upcoming


class _Chunks:
    """Sends chunks as requests in order, several in flight. Any answer with content except the last one is a refusal.

    It sends the first chunk alone, and repeats it while no server listens: in a cluster the answer with the subject may
    arrive before our server knows the subscription. A server reports that with a 503, and no server has got the chunk.

    If the block is left by an error of ours, it still ends the upload and waits for the answer, so that the server does
    nothing after that. After a refusal the server does not answer the chunks in flight.
    """

    def __init__(self, natty: Natty, subject: str) -> None:
        self._connection, self._subject = natty.connection, subject
        self._size = min(CHUNK_BYTES, int(natty.connection.server_info.get("max_payload", CHUNK_BYTES)) // 2)
        self._waiting: deque[asyncio.Future[RawMessage]] = deque()
        self._is_heard = self._is_refused = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._is_refused:
            with contextlib.suppress(NattyError, RestoreError):
                self._put(b"")
                while self._waiting:
                    await self._answer(ANSWER_WITHIN)

    async def send(self, data: bytes) -> None:
        """Send bytes, as chunks; wait while too many have no answer. RestoreError."""
        for start in range(0, len(data), self._size):
            if not self._is_heard:
                await self._send_first(data[: self._size])
                continue
            while len(self._waiting) >= IN_FLIGHT or (self._waiting and self._waiting[0].done()):
                await self._take_next(ANSWER_WITHIN)
            self._put(data[start : start + self._size])
            await self._connection.drain()

    async def _send_first(self, chunk: bytes) -> None:
        """Send a chunk until a server receives it. RestoreError."""
        until = time.monotonic() + HEARD_WITHIN
        while not self._is_heard:
            self._put(chunk)
            answer = await self._answer(ANSWER_WITHIN)
            if _is_unheard(answer) and time.monotonic() < until:
                await asyncio.sleep(POLL)
                continue
            self._take(answer)
            self._is_heard = True

    async def end(self) -> None:
        """End the upload; return when the stream is made. RestoreError."""
        while self._waiting:
            await self._take_next(ANSWER_WITHIN)
        self._put(b"")
        await self._take_next(END_WITHIN)

    def _put(self, data: bytes) -> None:
        reply, future = self._connection.expect_answer(self._subject.encode())
        self._connection.send(self._subject, data, reply=reply)
        self._waiting.append(future)

    async def _take_next(self, within: float) -> None:
        """Wait for the next answer. RestoreError if it is a refusal."""
        self._take(await self._answer(within))

    def _take(self, answer: RawMessage) -> None:
        try:
            _check(answer)
        except RestoreError:
            self._is_refused = True
            raise

    async def _answer(self, within: float) -> RawMessage:
        try:
            async with asyncio.timeout(within):
                return await self._waiting.popleft()
        except TimeoutError:
            raise RestoreError(f"the server did not answer within {within:g} s") from None


def _is_unheard(answer: RawMessage) -> bool:
    _, _, headers, payload = answer
    return not payload and status_of(headers)[0] == NOBODY


def _check(answer: RawMessage) -> None:
    """RestoreError unless an answer says to continue, or that everything was received."""
    if _is_unheard(answer):
        raise RestoreError("the server gave up: it gives no reason")
    payload = answer[3]
    if not payload:
        return
    try:
        reply = msgspec.json.decode(payload, type=dict[str, Any])
    except UNREADABLE:
        reply = {"error": {"description": payload.decode("utf-8", "replace")}}
    if error := reply.get("error"):
        raise RestoreError(f"the server gave up: {error.get('description', error)}")


async def try_replicas(natty: Natty, config: Mapping[str, Any]) -> None:
    """Create a stream of this configuration and delete it, if it has several replicas. RestoreError if that fails.

    A stream is restored on one server, and an update at the end gives it its replicas. If nats-server 2.15.1 restores a
    stream that has replicas from the start, a server other than the restoring one may lead a consumer without knowing
    its state: 6 of 185 streams lost what their consumers had acknowledged.
    """
    if config.get("num_replicas", 1) <= 1:
        return
    try:
        await natty.jetstream.request(f"STREAM.CREATE.{config['name']}", config)
        await natty.jetstream.request(f"STREAM.DELETE.{config['name']}")
    except JetStreamError as error:
        raise RestoreError(f"the server does not take stream {config['name']}: {error}") from error


async def remove_leftover(natty: Natty, name: str, token: str = "") -> bool:
    """Delete a stream that an unfinished restore has left, with this token or any. Return whether there was one."""
    try:
        config = (await natty.jetstream.request(f"STREAM.INFO.{name}"))["config"]
        mark = (config.get("metadata") or {}).get(MARK)
        if not mark or (token and mark != token):
            return False
        await natty.jetstream.request(f"STREAM.DELETE.{name}")
    except StreamNotFoundError:
        return False
    return True


async def give_up(natty: Natty, name: str, token: str) -> None:
    """Remove an incomplete stream. RestoreError says what is left, and what to do."""
    try:
        await natty.connection.ready(ANSWER_WITHIN)
        await remove_leftover(natty, name, token)
    except NattyError as error:
        raise RestoreError(
            f"the incomplete stream {name} could not be removed ({error}): it takes no messages. Delete it with"
            f" `natty stream delete {name}`, or restore with --again, which deletes it first"
        ) from error


async def consumers_there(natty: Natty, stream: str, wanted: Mapping[str, Mapping[str, Any]], within: float) -> None:
    """Wait until the server reports every consumer at its position. RestoreError.

    `wanted` has, by name, the ack floor that each must have reached (`consumer_seq`, `stream_seq`).
    """
    left = dict(wanted)
    try:
        async with asyncio.timeout(within):
            while left:
                for name, floor in list(left.items()):
                    with contextlib.suppress(JetStreamError, RequestTimeoutError):
                        found = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{name}")
                        if found["ack_floor"]["stream_seq"] >= floor["stream_seq"]:
                            del left[name]
                if left:
                    await asyncio.sleep(POLL)
    except TimeoutError:
        raise RestoreError(
            f"within {within:g} s the server did not report that the consumers {', '.join(left)} of stream {stream}"
            " are where they were"
        ) from None


async def stream_there(natty: Natty, stream: str, last: int, within: float, *, replicas: int = 1) -> None:
    """Wait until the server reports that a stream is filled up to `last`, and which replica leads it. RestoreError.

    Right after its update another replica may lead it, and answer before it has all messages. Until a leader is
    elected, no server answers publishers.
    """
    said = "nothing"
    try:
        async with asyncio.timeout(within):
            while True:
                with contextlib.suppress(JetStreamError, RequestTimeoutError):
                    info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
                    state, cluster = info["state"], info.get("cluster", {})
                    led = replicas <= 1 or (cluster.get("leader") and len(cluster.get("replicas", ())) == replicas - 1)
                    if led and state["last_seq"] >= last and (state["first_seq"] or not last):
                        return
                    said = f"sequences {state['first_seq']} to {state['last_seq']}{'' if led else ', without a leader'}"
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise RestoreError(
            f"stream {stream} was restored up to sequence {last}, but within {within:g} s the server reported: {said}."
            " Check it before you use it"
        ) from None

"""The decoder `message`: the whole message as the value."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import msgspec

from capture.decoders.contract import Decoding, per_message
from capture.ingest.record import header_texts, origin_of, text_or_none
from natty.wire.message import Message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WholeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with all facts that JetStream has about it.

    `data` is the payload as text, or None with the payload in `data_base64` if it is not UTF-8. Subjects and headers
    are text: bytes that are not UTF-8 are replaced. A message that its stream got from another one has an origin there.
    """

    stream: str
    sequence: int
    time: datetime
    time_ns: int
    deliveries: int
    subject: str
    headers: dict[str, list[str]]
    origin_stream: str | None
    origin_sequence: int | None
    data: str | None
    data_base64: str | None


def whole(message: Message) -> WholeMessage:
    """Return the message as a value."""
    subject, _, header_block, payload = message.raw
    text = text_or_none(payload)
    origin = origin_of(header_block)
    return WholeMessage(
        stream=message.stream,
        sequence=message.sequence,
        time=EPOCH + timedelta(microseconds=message.time_ns // 1000),
        time_ns=message.time_ns,
        deliveries=message.deliveries,
        subject=subject.decode("utf-8", "replace"),
        headers=header_texts(header_block),
        origin_stream=origin and origin[0],
        origin_sequence=origin and origin[1],
        data=text,
        data_base64=None if text is not None else b64encode(payload).decode(),
    )


decode: Decoding[WholeMessage] = Decoding(per_message(whole), shape=WholeMessage)
"""The value is the whole message."""

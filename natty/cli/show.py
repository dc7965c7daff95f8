"""How messages are printed: as text like that of the `nats` tool, as JSON lines, or as bare payloads."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from natty.cli.terminal import json_text, write
from natty.jetstream import StoredMessage
from natty.names import decode, encode
from natty.wire.message import Message, RawMessage, parse_headers


class Form(StrEnum):
    """How a message is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def form_of(*, as_json: bool, raw: bool) -> Form:
    """Return the form for the flags `--json` and `--raw`; `--raw` wins."""
    return Form.RAW if raw else Form.JSON if as_json else Form.TEXT


def show_message(number: int, raw: RawMessage, form: Form, *, stored: bool = False) -> None:
    """Print one message at once; with `stored`, print its stream and sequence, too."""
    write(message_text(number, raw, form, stored=stored))


def message_text(number: int, raw: RawMessage, form: Form, *, stored: bool = False) -> bytes:
    """Return a message as it is printed, including its end of line."""
    place = _place(Message(raw)) if stored else {}
    if form is Form.RAW:
        return raw[3] + b"\n"
    if form is Form.JSON:
        return json_text(fields_of(raw) | place).encode() + b"\n"
    return _text(number, raw, place)


def fields_of(raw: RawMessage) -> dict[str, Any]:
    """Return a message for JSON: its data as text, or in base64 as `data_base64` if it is not text."""
    return {"subject": decode(raw[0])} | _content(raw[2], raw[3])


def stored_fields(stream: str, message: StoredMessage) -> dict[str, Any]:
    """Return a message that was read from a stream for JSON, like `fields_of`, with its place."""
    place = {"stream": stream, "sequence": message.sequence, "time": message.time, "subject": message.subject}
    return place | _content(message.header_block, message.data)


def stored_text(stream: str, message: StoredMessage) -> bytes:
    """Return a message that was read from a stream as text: its place, its headers, its unchanged payload."""
    head = [f"{stream}#{message.sequence} on {message.subject}, {message.time}"]
    return _lines(head, message.header_block) + b"\n\n" + message.data + b"\n"


def _content(header_block: bytes, data: bytes) -> dict[str, Any]:
    return content_fields(parse_headers(header_block), data)


def content_fields(headers: dict[str, list[str]], data: bytes) -> dict[str, Any]:
    """Return headers and payload for JSON, without empty headers."""
    shown = {"headers": headers} if headers else {}
    try:
        return shown | {"data": data.decode()}
    except UnicodeDecodeError:
        return shown | {"data_base64": base64.b64encode(data).decode()}


def _place(message: Message) -> dict[str, Any]:
    return {
        "stream": message.stream,
        "sequence": message.sequence,
        "time": datetime.fromtimestamp(message.time_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "deliveries": message.deliveries,
    }


def _text(number: int, raw: RawMessage, place: dict[str, Any]) -> bytes:
    where = f" from {place['stream']}, sequence {place['sequence']}, {place['time']}" if place else ""
    if place and place["deliveries"] > 1:
        where += f", delivery {place['deliveries']}"
    head = _lines([f'[#{number}] Received on "{decode(raw[0])}"{where}'], raw[2])
    return head + b"\n\n" + raw[3] + b"\n\n" if raw[2] else head + b"\n" + raw[3] + b"\n\n"


def _lines(head: list[str], header_block: bytes) -> bytes:
    headers = [f"{name}: {value}" for name, values in parse_headers(header_block).items() for value in values]
    return encode("\n".join(line.replace("\n", "\\n") for line in head + headers))

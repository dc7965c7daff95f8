"""How messages are printed: as text like the `nats` tool's, as JSON lines, or bare."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from natty.message import Message, RawMessage, parse_headers


class Form(StrEnum):
    """How a message is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def form_of(*, as_json: bool, raw: bool) -> Form:
    """Return the form that the flags `--json` and `--raw` name; bare wins."""
    return Form.RAW if raw else Form.JSON if as_json else Form.TEXT


def show_message(number: int, raw: RawMessage, form: Form, *, stored: bool = False) -> None:
    """Print one message at once; with `stored`, say where in which stream it is."""
    place = _place(Message(raw)) if stored else {}
    if form is Form.RAW:
        line = raw[3] + b"\n"
    elif form is Form.JSON:
        line = json.dumps(fields_of(raw) | place, ensure_ascii=False).encode() + b"\n"
    else:
        line = _text(number, raw, place)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def fields_of(raw: RawMessage) -> dict[str, Any]:
    """Return a message for JSON: its data as text, or in base64 as `data_base64` if it is none."""
    fields: dict[str, Any] = {"subject": raw[0].decode()}
    if headers := parse_headers(raw[2]):
        fields["headers"] = headers
    try:
        return fields | {"data": raw[3].decode()}
    except UnicodeDecodeError:
        return fields | {"data_base64": base64.b64encode(raw[3]).decode()}


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
    lines = [f'[#{number}] Received on "{raw[0].decode()}"{where}']
    lines += [f"{name}: {value}" for name, values in parse_headers(raw[2]).items() for value in values]
    head = "\n".join(lines).encode("utf-8", "surrogateescape")
    return head + b"\n\n" + raw[3] + b"\n\n" if raw[2] else head + b"\n" + raw[3] + b"\n\n"

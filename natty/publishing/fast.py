"""Fast ingest on the wire: ADR-50, nats-server 2.14, a stream with `allow_batched`."""

from __future__ import annotations

import msgspec

START, APPEND, END = 0, 1, 3  # operations: begin a batch, add to it, end it without storing anything more
BATCH_UNKNOWN = 10208  # the batch is over: it was idle, or the stream has a new leader


class FastAnswer(msgspec.Struct):
    """What the server says on a batch's inbox. `type`: ack, gap or err, and empty at the end of the batch."""

    type: str = ""
    seq: int = 0
    msgs: int = 0  # the next ack comes after so many more; the server may have lowered it
    count: int = 0
    stream: str = ""
    error: dict[str, object] | None = None


read_answer = msgspec.json.Decoder(FastAnswer).decode


def flow_prefix(inbox: bytes, flow: int) -> bytes:
    """Return the beginning of a batch's reply subjects: at least an ack every `flow` messages, a gap ends the batch."""
    return b"%b.%d.fail." % (inbox, flow)


def place_of(inbox: bytes, subject: bytes) -> int:
    """Return the place in its batch of the message that this answer is about."""
    return int(subject[len(inbox) + 1 :].split(b".")[2])

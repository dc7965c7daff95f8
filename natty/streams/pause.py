"""Consumers that deliver nothing for a while, and keep their place. `$JS.API.CONSUMER.PAUSE`, nats-server 2.11."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from natty.errors import ConfigError
from natty.jetstream import JetStream
from natty.names import check_name
from natty.streams.consumer import on_wire
from natty.streams.nearest import naming_nearest


async def pause_consumer(jetstream: JetStream, stream: str, consumer: str, until: datetime) -> dict[str, Any]:
    """Let a consumer deliver nothing until a moment; return the server's answer: `pause_until`, `pause_remaining` (ns).

    ConfigError if that is past; StreamNotFoundError, ConsumerNotFoundError with the nearest names; UnsupportedError.
    """
    text = on_wire(until)
    answer = await _ask(jetstream, stream, consumer, {"pause_until": text})
    if not answer["paused"]:
        raise ConfigError(f"{text} is past by the server's clock: consumer {consumer} of stream {stream} is not paused")
    return answer


async def resume_consumer(jetstream: JetStream, stream: str, consumer: str) -> None:
    """Let a paused consumer deliver again, at once; one that is not paused is no error. Otherwise as pause_consumer."""
    await _ask(jetstream, stream, consumer, {})


async def _ask(jetstream: JetStream, stream: str, consumer: str, body: dict[str, str]) -> dict[str, Any]:
    jetstream.require("pausing a consumer")
    subject = f"CONSUMER.PAUSE.{check_name('stream', stream)}.{check_name('consumer', consumer)}"
    async with naming_nearest(jetstream, stream, consumer):
        return await jetstream.request(subject, body)

"""Errors for missing streams and consumers that name the nearest existing ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from natty.config.options import SHOWN, did_you_mean
from natty.errors import ConsumerNotFoundError, NattyError, StreamNotFoundError
from natty.jetstream import JetStream
from natty.streams.listing import consumer_names, stream_names


@asynccontextmanager
async def naming_nearest(jetstream: JetStream, stream: str, consumer: str = "") -> AsyncGenerator[None, None]:
    """Raise StreamNotFoundError and ConsumerNotFoundError of the block again, with the nearest existing names.

    Requests the names only then.
    """
    try:
        yield
    except StreamNotFoundError as error:
        text = missing_sentence("stream", stream, await _list_names(jetstream))
        raise StreamNotFoundError(text, code=error.code, err_code=error.err_code) from error
    except ConsumerNotFoundError as error:
        text = f"stream {stream}: {missing_sentence('consumer', consumer, await _list_names(jetstream, stream))}"
        raise ConsumerNotFoundError(text, code=error.code, err_code=error.err_code) from error


def missing_sentence(kind: str, name: str, names: Sequence[str] | None) -> str:
    """Return the sentence for a missing stream or consumer; `names` are the existing ones, None if unknown."""
    sentence = f"there is no {kind} {name}"
    if names is None:
        return sentence
    if meant := did_you_mean(name, names):
        return sentence + meant
    if not names:
        return f"{sentence}, nor any other"
    if len(names) > SHOWN:
        return sentence
    return f"{sentence}; there {'is' if len(names) == 1 else 'are'} {', '.join(sorted(names))}"


async def _list_names(jetstream: JetStream, stream: str = "") -> list[str] | None:
    """Return the names of the streams, or of a stream's consumers; None without the permission to list them."""
    try:
        return await (consumer_names(jetstream, stream) if stream else stream_names(jetstream))
    except NattyError:
        return None

"""What an administrator does with the messages of a stream: purge, delete one, look at one."""

from __future__ import annotations

from typing import Any

from natty.errors import ConfigError, JetStreamError, NattyError
from natty.jetstream import JetStream, StoredMessage
from natty.stream.ensure import stream_state
from natty.stream.names import check_name

_NOT_DELETED = frozenset({10043, 10057})  # there is no such message, or the stream denies deleting


class MessageNotFoundError(NattyError):
    """The stream has no such message."""


async def message(jetstream: JetStream, stream: str, *, sequence: int = 0, last_for: str = "") -> StoredMessage:
    """Return the message at a sequence, or the last one on a subject, wildcards too, read from the stream's leader.

    MessageNotFoundError tells which sequences there are; StreamNotFoundError.
    """
    found = await jetstream.read(check_name("stream", stream), sequence=sequence, subject=last_for)
    if found is not None:
        return found
    what = f"on {last_for}" if last_for else f"at sequence {sequence}"
    state = await stream_state(jetstream, stream)
    held = f"{state['first_seq']} to {state['last_seq']}" if state["messages"] else "none"
    raise MessageNotFoundError(f"stream {stream} has no message {what}; it holds {held}")


async def purge(jetstream: JetStream, stream: str, *, subject: str = "", below: int = 0, keep: int = 0) -> int:
    """Delete messages of a stream at once and return how many: all, or those that every given limit allows.

    `subject` takes only messages on it, wildcards too; `below` those before a sequence, "truncate"; `keep` leaves the
    newest so many. StreamNotFoundError; JetStreamError where the stream denies it, and where the server refuses both
    `below` and `keep`: ConfigError, before anything is asked. Protocol: ADR-10's STREAM.PURGE.
    """
    if below and keep:
        raise ConfigError("a purge is down to a sequence, or keeps a number of messages: not both")
    body = {"filter": subject, "seq": below, "keep": keep}
    answer = await jetstream.request(
        f"STREAM.PURGE.{check_name('stream', stream)}", {key: value for key, value in body.items() if value}
    )
    return int(answer["purged"])


async def delete_message(jetstream: JetStream, stream: str, sequence: int, *, erase: bool = True) -> bool:
    """Delete one message, by default overwriting it on the disk; return False if there is none at this sequence.

    Without `erase` it is only marked as deleted, which is faster. StreamNotFoundError; JetStreamError where the stream
    denies deleting.
    """
    body: dict[str, Any] = {"seq": sequence} | ({} if erase else {"no_erase": True})
    try:
        await jetstream.request(f"STREAM.MSG.DELETE.{check_name('stream', stream)}", body)
    except JetStreamError as error:
        if error.err_code in _NOT_DELETED and await jetstream.read(stream, sequence=sequence) is None:
            return False
        raise
    return True

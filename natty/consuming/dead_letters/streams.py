"""The two streams of dead letters: the letters, and the server's advisories that are not processed yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from natty.config.options import LARGEST, Count, Range, SecondsOrZero, check_options
from natty.consuming.dead_letters.letter import prefix_of
from natty.errors import JetStreamError, StreamExistsError
from natty.jetstream import JetStream
from natty.names import covers
from natty.streams import StreamConfig, create_replicated, stream_info
from natty.streams.listing import stream_names

LETTERS = "DEAD_LETTERS"
ADVISORIES = "NATTY_ADVISORIES"
GAVE_UP = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
TERMINATED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
ADVISORIES_AGE = 30 * 24 * 3600.0  # seconds that an advisory waits until a process reads it
ADVISORIES_WAITING = 100_000  # at most, of one consumer and kind: advisories without a watcher must not fill the disk
SUBJECTS_OVERLAP = 10065


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions:
    """Names of the streams of letters and advisories, and settings for creating missing ones."""

    letters: str = LETTERS
    advisories: str = ADVISORIES
    replicas: Count | None = None  # None: 3 on a cluster, otherwise 1
    max_age: SecondsOrZero | str = 0.0  # seconds that a letter is kept; 0: until it is retried or purged
    max_bytes: Annotated[int, Range(-1, LARGEST)] | str = -1  # of all; when full, `bury` fails and the message stays

    def __post_init__(self) -> None:
        check_options(self)


async def ensure_streams(jetstream: JetStream, options: DeadLetterOptions) -> None:
    """Create missing streams; usable existing ones stay as they are.

    StreamExistsError if one can't be used, or if another stream holds its subjects.
    """
    replicas: StreamConfig = {"num_replicas": options.replicas} if options.replicas else {}
    prefix = prefix_of(options.letters)
    letters: StreamConfig = {
        "subjects": [f"{prefix}.*.*.*", f"{prefix}.*.*.*.>"],
        **replicas,
        "max_age": options.max_age,
        "max_bytes": options.max_bytes,
        "discard": "new",
    }
    if await _ensure(jetstream, options.letters, letters) != "limits":
        raise StreamExistsError(
            f"stream {options.letters} does not have limits retention: letters would be deleted when read"
        )
    advisories: StreamConfig = {
        "subjects": [f"{GAVE_UP}.*.*", f"{TERMINATED}.*.*"],
        "retention": "workqueue",
        **replicas,
        "max_age": ADVISORIES_AGE,
        "max_msgs_per_subject": ADVISORIES_WAITING,
    }
    await _ensure(jetstream, options.advisories, advisories)


async def _ensure(jetstream: JetStream, name: str, settings: StreamConfig) -> str:
    """Create the stream if it is missing, check that it takes the subjects, and return its retention."""
    subjects = list(settings["subjects"])
    try:
        config = await create_replicated(jetstream, name, settings)
    except StreamExistsError:  # with different settings, which the operator chose
        config = (await stream_info(jetstream, name))["config"]
    except JetStreamError as error:
        if error.err_code != SUBJECTS_OVERLAP:
            raise
        holders = sorted({other for one in subjects for other in await stream_names(jetstream, subject=one)})
        raise StreamExistsError(
            f"stream {name} can't be made: {' or '.join(holders)} takes {' and '.join(subjects)} already, and a subject"
            " can be in one stream only. Remove them there, or name that stream in DeadLetterOptions"
        ) from error
    if missing := [subject for subject in subjects if not covers(config["subjects"], subject)]:
        raise StreamExistsError(f"stream {name} exists without the subjects {' and '.join(missing)}: add them to it")
    return str(config["retention"])

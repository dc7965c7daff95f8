"""A template, and the decision which streams to create for waiting subjects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from natty.config.units import NANOSECONDS
from natty.errors import ConfigError
from natty.kv.json_records import Whole
from natty.names import BadNameError, check_name, check_pattern, covers
from natty.streams.conversion import check_stream_settings, from_wire

MAX_STREAMS = 1000  # of a template, by default
LONGEST_NAME = 255  # characters: the name of a stream's folder
SHORTEST_AGE = 60.0  # seconds, see `check`
OWNER = "natty.template"  # metadata of its streams: the template's name
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\{(\d+)\}")
_OURS = ("subjects", "sources", "mirror", "subject_transform", "first_seq")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A declared pattern: for each new value of the tokens that `stream` names, a stream is created.

    `stream` has `{1}` for the subject's first `*`, `{2}` for the second. A `*` that it does not name, or a last `>`,
    stays a wildcard of its streams. `settings` of the streams are in the server's terms. `max_waiting` messages of a
    subject may wait for their stream; then the server refuses more. 0: any number.
    """

    name: str
    subject: str
    stream: str
    settings: dict[str, Any] = {}
    max_streams: Whole = MAX_STREAMS
    max_waiting: Whole = 0

    @property
    def intake(self) -> str:
        """The stream that stores published messages until their own stream has them."""
        return f"TEMPLATE_{self.name}"

    def check(self) -> None:
        """ConfigError, BadNameError or BadSubjectError if the template can't create a stream."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"template name {self.name!r}: write letters, digits, - and _")
        stars = check_pattern(self.subject).split(".").count("*")
        used = [int(number) for number in _PLACE.findall(self.stream)]
        if not used:
            raise ConfigError(
                f"{self.stream!r} gives all streams one name: put {{1}} into it, for the subject's first *"
            )
        if wrong := [number for number in used if not 1 <= number <= stars]:
            raise ConfigError(f"{self.stream!r} names {{{wrong[0]}}}, and subject {self.subject} has {stars} `*`")
        check_name("stream", _PLACE.sub("x", self.stream))
        if self.max_streams < 1 or self.max_waiting < 0:
            raise ConfigError("max_streams must be at least 1, and max_waiting at least 0")
        self._check_settings()

    def _check_settings(self) -> None:
        if taken := [name for name in _OURS if name in self.settings]:
            raise ConfigError(f"the template sets {taken[0]} of its streams itself: leave it out")
        check_stream_settings(from_wire(self.settings), f"template {self.name}", units=False)
        if self.settings.get("retention", "limits") != "limits":
            raise ConfigError(
                f"a template's streams can't have retention {self.settings['retention']}: if workers have emptied a"
                " stream when a server dies, it would store its messages a second time. Let workers share a durable"
                " consumer"
            )
        if 0 < self.settings.get("max_age", 0) < SHORTEST_AGE * NANOSECONDS:
            raise ConfigError(
                f"max_age of a template's streams is {SHORTEST_AGE:g} s at least: a stream that is empty when a server"
                " dies may store its messages a second time"
            )

    def takes(self, subject: str) -> bool:
        """Return whether a subject belongs to this template."""
        return covers([self.subject], subject)

    def place(self, subject: str) -> tuple[str, str]:
        """Return the name of a subject's stream, and the filter of the stream's messages."""
        tokens, pattern = subject.split("."), self.subject.split(".")
        stars = [index for index, token in enumerate(pattern) if token == "*"]
        values = {number: tokens[index] for number, index in enumerate(stars, start=1)}
        used = {int(number) for number in _PLACE.findall(self.stream)}
        for number in used:
            pattern[stars[number - 1]] = values[number]
        return _PLACE.sub(lambda match: values[int(match[1])], self.stream), ".".join(pattern)

    def document(self, stream: str, only: str) -> dict[str, Any]:
        """Return the configuration of a stream of this template, in the server's terms."""
        return {
            **self.settings,
            "name": stream,
            "sources": [{"name": self.intake, "filter_subject": only}],
            "metadata": {**self.settings.get("metadata", {}), OWNER: self.name},
        }

    def intake_document(self) -> dict[str, Any]:
        """Return the configuration of the intake: a work queue, so that a message is in it until its stream has it."""
        shared = ("storage", "num_replicas", "duplicate_window", "max_msg_size", "allow_msg_ttl", "placement")
        document: dict[str, Any] = {name: self.settings[name] for name in shared if name in self.settings}
        document |= {
            "name": self.intake,
            "subjects": [self.subject],
            "retention": "workqueue",
            "allow_batched": True,
            "description": f"what waits for a stream of template {self.name}",
        }
        if self.max_waiting:
            document |= {"max_msgs_per_subject": self.max_waiting, "discard": "new", "discard_new_per_subject": True}
        return document


@dataclass(frozen=True)
class Decision:
    """The streams to create (→ filter), and the filters that are refused (→ reason)."""

    make: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def decide(
    template: Template,
    waiting: Iterable[str],
    known: Set[str],
    failed: Mapping[str, str] = MappingProxyType({}),
    again: Set[str] = frozenset(),
    *,
    at_once: int = 200,
) -> Decision:
    """Return which streams to create for the waiting subjects, given the existing ones; at most `at_once`.

    `failed`: filter → why the server refused its stream; those in `again` are tried once more, after all others and
    if there is room for them.
    """
    decision = Decision()
    places = set()
    for subject in waiting:
        if template.takes(subject):
            places.add(template.place(subject))
        else:
            decision.refused[subject] = f"it is none of {template.subject}: a client has changed {template.intake}"
    for stream, only in sorted(places, key=lambda one: (one[1] in failed, one)):
        if stream in known or len(decision.make) >= at_once:
            continue
        full = len(known) + len(decision.make) >= template.max_streams
        if reason := _bad_name(stream):
            decision.refused[only] = reason
        elif stream in decision.make:
            decision.refused[only] = f"stream {stream} is that of {decision.make[stream]}: two tokens, one name"
        elif only in failed and (full or only not in again):
            decision.refused[only] = failed[only]
        elif full:
            decision.refused[only] = (
                f"template {template.name} has its {template.max_streams} streams: raise it with `natty stream template"
                " edit --max-streams`, or delete some"
            )
        else:
            decision.make[stream] = only
    return decision


def _bad_name(stream: str) -> str:
    try:
        check_name("stream", stream)
    except BadNameError as error:
        return str(error)
    if len(stream.encode()) > LONGEST_NAME:
        return f"stream name {stream[:20]!r}… has {len(stream.encode())} bytes, and {LONGEST_NAME} is the most"
    return ""

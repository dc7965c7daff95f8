"""The least permissions that each kind of client needs: the subjects that it publishes and subscribes to.

The subjects are those of JetStream's API, of elections (docs/election.md) and of dead letters (docs/dead-letters.md).
A test runs each role with a user that has no other permissions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from natty.consuming.dead_letters.advisory import durable_of
from natty.consuming.dead_letters.letter import prefix_of
from natty.consuming.dead_letters.streams import ADVISORIES, LETTERS
from natty.elections.options import BUCKET
from natty.elections.record import Subjects, republish_subject
from natty.jetstream import OWN_API
from natty.streams.changes import SCHEDULES

INBOX = "_INBOX"


@dataclass(frozen=True)
class Permissions:
    """Subjects that a user may publish and subscribe to, besides its inbox, which each user needs.

    `own_inbox_only` is False if the user also publishes to the inboxes of others, as candidates of an election do.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    own_inbox_only: bool = field(default=True, kw_only=True)

    def __add__(self, other: Permissions) -> Permissions:
        return Permissions(
            (*self.publish, *other.publish),
            (*self.subscribe, *other.subscribe),
            own_inbox_only=self.own_inbox_only and other.own_inbox_only,
        )

    def block(self, inbox: str = INBOX) -> str:
        """Return the text of a `permissions` block for a user in the server's configuration.

        `inbox` is the prefix of the user's inboxes, its `inbox_prefix`.
        """
        publish = list(dict.fromkeys([*self.publish, *([] if self.own_inbox_only else [f"{inbox}.>"])]))
        subscribe = list(dict.fromkeys([f"{inbox}.>", *self.subscribe]))
        return (
            "permissions {\n"
            f"  publish {{ allow [\n{_lines(publish)}  ] }}\n"
            f"  subscribe {{ allow [\n{_lines(subscribe)}  ] }}\n"
            "}"
        )


def publisher(stream: str, subjects: Iterable[str], *, later: bool = False) -> Permissions:
    """Return the permissions of a program that stores messages on these subjects of a stream.

    `later`: also to publish later, and to list and cancel what waits. The server then lets it publish on every subject
    of the stream, by a schedule.
    """
    found = Permissions(tuple(subjects))
    found += Permissions(api_subjects(f"STREAM.INFO.{stream}", f"STREAM.MSG.GET.{stream}", "STREAM.NAMES"))
    if later:
        found += Permissions((f"{SCHEDULES}.{stream}.>", *api_subjects(f"STREAM.MSG.DELETE.{stream}")))
    return found


def service(
    stream: str, durable: str, *, letters: str = LETTERS, advisories: str = ADVISORIES, setup: bool = False
) -> Permissions:
    """Return what `consume` needs: its durable consumer, and dead letters. `setup`: also to create their streams."""
    found = consumer(stream, durable) + consumer(advisories, durable_of(stream, durable))
    found += Permissions((f"{prefix_of(letters)}.{stream}.{durable}.>",))
    found += Permissions(api_subjects(f"STREAM.MSG.GET.{stream}", f"STREAM.MSG.GET.{letters}"))  # deleted or dead?
    found += Permissions(api_subjects(f"CONSUMER.RESET.{stream}.{durable}"))
    found += Permissions(api_subjects(*(f"STREAM.INFO.{name}" for name in (letters, advisories))))
    return found + (_creation(letters, advisories) if setup else Permissions(()))


def consumer(stream: str, durable: str) -> Permissions:
    """Return the permissions to create a durable pull consumer and to read from it."""
    one = f"{stream}.{durable}"
    named = api_subjects(f"CONSUMER.CREATE.{one}", f"CONSUMER.CREATE.{one}.>", f"CONSUMER.INFO.{one}")
    return Permissions((*named, *api_subjects(f"CONSUMER.MSG.NEXT.{one}", f"STREAM.INFO.{stream}"), f"$JS.ACK.{one}.>"))


def candidate(name: str, *, bucket: str = BUCKET, setup: bool = False) -> Permissions:
    """Return what a candidate of an election needs, also as its leader. `setup`: also to create the bucket."""
    subjects = Subjects(bucket, name)
    owned = (subjects.lease, subjects.epoch, subjects.fence, subjects.commit(">"), subjects.term("*"))
    api = api_subjects(f"STREAM.INFO.{subjects.stream}", f"STREAM.MSG.GET.{subjects.stream}")
    found = Permissions((*owned, *api), (republish_subject(bucket),), own_inbox_only=False)
    return found + (_creation(subjects.stream) if setup else Permissions(()))


def bucket_reader(bucket: str) -> Permissions:
    """Return the permissions to read and to watch the keys of a bucket."""
    stream = f"KV_{bucket}"
    verbs = ("CREATE", "DELETE", "MSG.NEXT")
    ephemeral = api_subjects(*(f"CONSUMER.{verb}.{stream}.*" for verb in verbs), f"CONSUMER.CREATE.{stream}.*.>")
    return Permissions((*api_subjects(f"STREAM.INFO.{stream}", f"STREAM.MSG.GET.{stream}"), *ephemeral))


def bucket_writer(bucket: str, *, setup: bool = False) -> Permissions:
    """Return the permissions to read and write all keys of a bucket. `setup`: also to create the bucket."""
    found = bucket_reader(bucket) + Permissions((f"$KV.{bucket}.>",))
    return found + (_creation(f"KV_{bucket}") if setup else Permissions(()))


def administrator() -> Permissions:
    """Return what the commands that create, change, show and delete need: all of the account's JetStream API.

    The subjects of the streams are not included: to publish, or to redrive dead letters, a user needs those, too.
    """
    publish = (f"{OWN_API}.>", "$JS.ACK.>", "$JS.SNAPSHOT.>", "$KV.>", "$NATTY.>", "$SYS.REQ.USER.INFO")
    return Permissions(publish, ("el.obs.>", "$JS.EVENT.ADVISORY.>"), own_inbox_only=False)


def _creation(*streams: str) -> Permissions:
    return Permissions(api_subjects(*(f"STREAM.CREATE.{name}" for name in streams)))


def api_subjects(*requests: str) -> tuple[str, ...]:
    """Return the subjects of these requests to the JetStream API."""
    return tuple(f"{OWN_API}.{one}" for one in requests)


def _lines(subjects: Iterable[str]) -> str:
    return "".join(f"    {json.dumps(one)}\n" for one in subjects)

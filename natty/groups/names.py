"""What pcgroups 0.2 calls its things on the server."""

from __future__ import annotations

import re

from natty.errors import BadGroupError
from natty.names import check_name

STATIC_BUCKET = "static-consumer-groups"
ELASTIC_BUCKET = "elastic-consumer-groups"
PRIORITY_GROUP = "PCG"  # of every member's consumer
_NAME = re.compile(r"[-_=A-Za-z0-9]+")


def record_key(stream: str, group: str) -> str:
    """Return the key of a group's record in its bucket. BadGroupError for a name that no key can have in it."""
    for kind, name in (("stream", stream), ("group", group)):
        if not _NAME.fullmatch(name):
            raise BadGroupError(
                f"{kind} name {name!r} can't be part of a group's key: letters, digits, '-', '_' and '=' can"
            )
    return f"{stream}.{group}"


def work_queue(stream: str, group: str) -> str:
    """Return the name of the stream that an elastic group reads."""
    return f"{stream}-{group}"


def static_consumer(group: str, member: str) -> str:
    """Return the name of a static member's durable consumer, which is on the group's stream itself."""
    return f"{group}-{member}"


def check_member(name: str) -> str:
    """Return the name if a member can have it: it is a consumer's, or part of one. BadNameError."""
    return check_name("member", name)

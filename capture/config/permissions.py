"""The NATS permissions of the members of an archive's fleet: the least that each one's work needs.

A test runs each role with an account that may do nothing more.
"""

from __future__ import annotations

from enum import StrEnum

from capture.archive.heads import COMPACTION, PIPELINES, SWEEP
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError
from capture.ingest.board import BUCKET as STATE
from capture.ingest.group_source import direct_roster_key, roster_key
from natty.elections.options import BUCKET as ELECTIONS
from natty.elections.permissions import Permissions, api_subjects, bucket_reader, candidate, consumer
from natty.groups.roster import MEMBERS_BUCKET as MEMBERS
from natty.groups.settings import STATIC_BUCKET as GROUPS


class Role(StrEnum):
    """The work of a process for an archive."""

    NODE = "node"
    LEADER = "leader"
    COMPACTION = "compaction"
    READER = "reader"
    PURGE = "purge"
    RESTORE = "restore"
    OPERATOR = "operator"
    FOLLOWER = "follower"


def permissions(role: Role, config: CaptureConfig, *, setup: bool = False, pipelines: str = "") -> Permissions:
    """Return the permissions of a role for the configuration's stream and archive.

    A `node` captures, and cannot be elected. A `leader` is a node that can be elected to sweep and to compact: at least
    one machine must run `capture run` with this role. `compaction` is for `capture compact` and `capture sweep`. A
    `reader` reads the archive and verifies it. `purge` and `restore` are for the commands of that name. With `setup`
    the role also creates missing buckets. `pipelines` is the name of the pipelines' election, if there are pipelines: a
    `leader` can also be elected to run them, and an `operator`, who may do what a reader may, can ask that leader to
    run, rerun, pause and resume them. A `follower` is the user as whom Spark reads the stream for pipelines that follow
    it (`[spark] source_options`); a `leader` whose pipelines do may do that, too. ConfigError for an operator if there
    are no pipelines.
    """
    buckets = (STATE, ELECTIONS, *([MEMBERS] if config.group or config.is_direct else []))
    made = api_subjects(*(f"STREAM.CREATE.KV_{bucket}" for bucket in buckets)) if setup else ()
    found = _ROLES[role](config) + Permissions(made)
    if role == Role.OPERATOR:
        if not pipelines:
            raise ConfigError("an operator asks for runs of pipelines, and the configuration names none: give --config")
        return found + Permissions((f"$KV.{STATE}.pipelines.{pipelines}",))
    if pipelines and role == Role.LEADER:
        found += candidate(PIPELINES.election(pipelines))
        found += _follower(config) if any(one.follows for one in config.pipeline) else Permissions(())
    return found


def _node(config: CaptureConfig) -> Permissions:
    stream = config.stream
    if config.is_direct:
        found = _direct(config)
    else:
        found = _group(config) if config.group else consumer(stream, config.durable)
    own = (f"$KV.{STATE}.node.{config.name}.*", *api_subjects("INFO", f"STREAM.INFO.KV_{STATE}"))
    return found + _HEADS + Permissions(own)


def _direct(config: CaptureConfig) -> Permissions:
    """Return what a node without a consumer needs: direct gets, the archive's heads, its registration."""
    keys = [direct_roster_key(config.stream, config.name, named) for named in ("", "*")]
    own = tuple(f"$KV.{MEMBERS}.{key}.*" for key in keys)
    return _follower(config) + bucket_reader(MEMBERS) + Permissions(own)


def _group(config: CaptureConfig) -> Permissions:
    """Return what a node of a group needs: the consumers of all members, the group's record, its registration."""
    stream = config.stream
    verbs = (f"CONSUMER.RESET.{stream}.*", f"CONSUMER.UNPIN.{stream}.*", f"STREAM.MSG.GET.{stream}")
    own = (f"$KV.{MEMBERS}.{roster_key(stream, config.group)}.*", *api_subjects(*verbs))
    return consumer(stream, "*") + bucket_reader(GROUPS) + bucket_reader(MEMBERS) + Permissions(own)


def _offices(config: CaptureConfig) -> Permissions:
    offices = candidate(SWEEP.election(config.name)) + candidate(COMPACTION.election(config.name))
    stream = api_subjects(
        f"STREAM.INFO.{config.stream}", f"STREAM.MSG.GET.{config.stream}", f"CONSUMER.LIST.{config.stream}"
    )
    return offices + bucket_reader(STATE) + Permissions((f"$KV.{STATE}.archive.{config.name}", *stream))


def _reader(config: CaptureConfig) -> Permissions:
    consumers = [f"CONSUMER.INFO.{config.stream}.{'*' if config.group else config.durable}"]
    messages = (f"STREAM.MSG.GET.{config.stream}", f"DIRECT.GET.{config.stream}")
    own = api_subjects(f"STREAM.INFO.{config.stream}", *messages, *([] if config.is_direct else consumers))
    groups = bucket_reader(GROUPS) if config.group else Permissions(())
    return Permissions(own) + _HEADS + bucket_reader(STATE) + groups


def _follower(config: CaptureConfig) -> Permissions:
    verbs = ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
    return Permissions(api_subjects(*(f"{verb}.{config.stream}" for verb in verbs)))


def _purge(config: CaptureConfig) -> Permissions:
    verbs = (f"STREAM.PURGE.{config.stream}", f"CONSUMER.LIST.{config.stream}", "STREAM.LIST")
    return _reader(config) + Permissions(api_subjects(*verbs))


def _restore(config: CaptureConfig) -> Permissions:
    stream = config.stream
    verbs = ("CREATE", "DELETE", "INFO", "PURGE", "RESTORE", "UPDATE")
    whole = api_subjects("INFO", "STREAM.LIST", *(f"STREAM.{verb}.{stream}" for verb in verbs))
    consumers = api_subjects(*(f"CONSUMER.{verb}.{stream}.>" for verb in ("CREATE", "DELETE", "INFO")))
    upload = (f"$JS.SNAPSHOT.RESTORE.{stream}.*", "_capture.restore.>")  # servers before 2.15 use the latter
    return _HEADS + Permissions((*whole, *consumers, *upload), own_inbox_only=False)


_HEADS = Permissions(api_subjects(f"STREAM.INFO.KV_{ELECTIONS}", f"STREAM.MSG.GET.KV_{ELECTIONS}"))
"""For reading the archive's heads: which store holds the archive, and what was committed."""

_ROLES = {
    Role.NODE: _node,
    Role.LEADER: lambda config: _node(config) + _offices(config),
    Role.COMPACTION: lambda config: _reader(config) + _offices(config),
    Role.READER: _reader,
    Role.PURGE: _purge,
    Role.RESTORE: _restore,
    Role.OPERATOR: _reader,
    Role.FOLLOWER: _follower,
}

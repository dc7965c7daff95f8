"""The bucket of elections: created with the settings that the guarantees need, and refused if it has others."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from natty.elections.options import DESCRIPTION, ElectionOptions
from natty.elections.record import republish_subject
from natty.errors import BucketNotFoundError, StreamExistsError
from natty.jetstream import JetStream
from natty.kv.bucket_config import bucket_settings
from natty.streams import StreamConfig, create_replicated, create_stream

log = logging.getLogger("natty.leader")
_reported: set[tuple[tuple[str, ...], str]] = set()  # (servers, bucket): once in a process


async def make_bucket(jetstream: JetStream, options: ElectionOptions) -> None:
    """Create the bucket if it does not exist.

    Sequences start at the Unix time in milliseconds, so that the tokens of a bucket that is created again are higher
    than the old ones. StreamExistsError with the difference if it has other settings; UnsupportedError on a server
    before 2.12.14, or 2.14.0 to 2.14.3, because their conditional publishes are not reliable.
    """
    jetstream.require("leader election")
    name, wanted = f"KV_{options.bucket}", _required_settings(options)
    try:
        await jetstream.request(f"STREAM.INFO.{name}")
    except BucketNotFoundError:
        new: StreamConfig = {**bucket_settings(options.bucket, None), **wanted}
        new["first_seq"], new["description"] = int(time.time() * 1000), options.description or DESCRIPTION
        with suppress(StreamExistsError):  # another node was faster: `create_stream` compares all but first_seq
            await create_replicated(jetstream, name, new)
    replicas = (await create_stream(jetstream, name, wanted))["num_replicas"]
    bucket = jetstream.connection.config.servers, options.bucket
    if replicas < 3 and bucket not in _reported:
        _reported.add(bucket)
        if jetstream.connection.server_info.get("cluster"):
            text = (
                "the elections of bucket %s have %s: while its server is down no leader is elected, and if its disk is"
                " lost, so are its tokens; use three"
            )
            log.warning(text, options.bucket, show_replicas(replicas))
        else:
            log.info("the elections of bucket %s are on one server: while it is down, no node leads", options.bucket)


def show_replicas(replicas: int) -> str:
    """Return "1 replica", "2 replicas"."""
    return f"{replicas} replica{'s' * (replicas != 1)}"


def is_election_bucket(config: Mapping[str, Any]) -> bool:
    """Return whether a stream's configuration is that of a bucket that elections made."""
    name = config["name"]
    republished = (config.get("republish") or {}).get("dest")
    return name.startswith("KV_") and republished == republish_subject(name.removeprefix("KV_"))


def _required_settings(options: ElectionOptions) -> StreamConfig:
    needed: StreamConfig = {
        "max_age": 0.0,  # the lease has its own TTL
        "max_msgs_per_subject": 1,
        "storage": "file",
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "republish": {"src": f"$KV.{options.bucket}.>", "dest": republish_subject(options.bucket)},
    }
    if options.replicas is not None:
        needed["num_replicas"] = options.replicas
    return needed

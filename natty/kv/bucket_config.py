"""The settings of a new bucket, and the configuration of its stream: ADR-8."""

from __future__ import annotations

from typing import Unpack, cast

from natty.config.options import check_value, did_you_mean
from natty.config.units import seconds_of
from natty.errors import BucketNotFoundError, ConfigError
from natty.jetstream import JetStream
from natty.kv.key_names import check_bucket
from natty.streams import BucketConfig, StreamConfig, create_replicated, create_stream, stream_info
from natty.streams.schema import rows

MARKER_TTL = 60.0  # seconds that the marker of an expired key stays
MARKER_TTL_OF_HISTORY = 1.0  # with history, the server keeps each key at least this long; this is the minimum


async def make_bucket(
    jetstream: JetStream,
    bucket: str,
    *,
    ttl: float | str | None = None,
    history: int | None = None,
    replicas: int | None = None,
    marker_ttl: float | str | None = None,
    **settings: Unpack[StreamConfig],
) -> None:
    """Create the bucket if it does not exist. The settings are those of `BucketConfig`.

    `ttl`, in seconds or as text ("7d"), is for all keys. The bucket keeps `history` values for each key: 1 by default,
    64 at most. `replicas` default to 3 on a cluster, otherwise 1. `marker_ttl`, written like `ttl`, is how long the
    marker of an expired key stays, for disconnected watches: by default 60 seconds, or 1 with a history of several
    values, because the server then keeps each key at least that long; 0: no markers. Other settings are the stream's.
    StreamExistsError if the bucket exists and a named setting has another value; ConfigError for an unknown setting.
    """
    name = f"KV_{check_bucket(bucket)}"
    for setting in settings.keys() - rows(BucketConfig).keys():
        hint = did_you_mean(setting, [*rows(BucketConfig)])
        raise ConfigError(f"bucket {bucket}: there is no setting {setting}{hint}")
    check_value("history", history, int | None)
    check_value("replicas", replicas, int | None)
    ttl = None if ttl is None else seconds_of("ttl", ttl)
    marker_ttl = None if marker_ttl is None else seconds_of("marker_ttl", marker_ttl)
    if ttl is not None and ttl < 0:
        raise ValueError(f"ttl is {ttl:g} s: give a positive time, or 0 for no limit")
    if history is not None and not 1 <= history <= 64:
        raise ValueError(f"history is {history}: give 1 to 64 values per key")
    if marker_ttl is not None and marker_ttl != 0 and not marker_ttl >= 1:
        raise ValueError(f"marker_ttl is {marker_ttl:g} s: give at least 1 s, or 0 for no markers")
    named = {"max_age": ttl, "max_msgs_per_subject": history, "num_replicas": replicas}
    named |= {"subject_delete_marker_ttl": marker_ttl}
    chosen = {setting: value for setting, value in named.items() if value is not None}
    wanted = cast("StreamConfig", chosen | {name: value for name, value in settings.items() if value is not None})
    try:
        await stream_info(jetstream, name)
    except BucketNotFoundError:
        jetstream.require("a key-value bucket")
        several = wanted.get("max_msgs_per_subject", 1) != 1
        new = bucket_settings(bucket, ttl)
        new["subject_delete_marker_ttl"] = MARKER_TTL_OF_HISTORY if several else MARKER_TTL
        await create_replicated(jetstream, name, {**new, **wanted})
    else:
        await create_stream(jetstream, name, wanted)


def bucket_settings(bucket: str, ttl: float | None) -> StreamConfig:
    """Return the settings of a bucket's stream: ADR-8, with TTLs for single keys and markers of expired ones."""
    return {
        "subjects": [f"$KV.{bucket}.>"],
        "max_age": ttl or 0.0,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": MARKER_TTL,
        "duplicate_window": min(ttl, 120.0) if ttl else 120.0,
    }

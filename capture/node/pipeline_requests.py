"""What operators ask of the pipelines' leader, through a key of the state's bucket; the leader answers by a commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec

from capture.errors import CaptureError
from capture.ingest.board import BUCKET, DESCRIPTION, MOST_BYTES
from natty import BucketNotFoundError, KeyNotFoundError, Natty
from natty.errors import BadRecordError
from natty.kv.json_records import decode

What = Literal["run", "rerun", "pause", "resume"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request about one pipeline. Its table has the `id` as `asked` as soon as the request is carried out.

    A "rerun" makes all rows again, of the messages that the streams stored at or after `since_ns` (Unix nanoseconds).
    `by` asked at `at` (Unix seconds).
    """

    what: What
    id: str = ""
    since_ns: int = 0
    at: float = 0.0
    by: str = ""


class _Requests(msgspec.Struct, frozen=True, kw_only=True):
    """The last request about each pipeline."""

    pipelines: dict[str, Request] = {}


def requests_key(name: str) -> str:
    """Return the key of the requests; `name` is that of the pipelines' election (`config.pipelines_name`)."""
    return f"pipelines.{name}"


async def read_requests(natty: Natty, name: str) -> Mapping[str, Request]:
    """Return the last request about each pipeline. CaptureError if they can't be read; NattyError."""
    try:
        return _decode((await natty.bucket(BUCKET).get(requests_key(name))).value).pipelines
    except (KeyNotFoundError, BucketNotFoundError):
        return {}


async def ask(natty: Natty, name: str, pipeline: str, what: What, *, by: str, since_ns: int = 0) -> Request:
    """Ask the leader. An earlier request about the pipeline that was not carried out yet is replaced. NattyError."""
    request = Request(what=what, id=uuid.uuid4().hex, since_ns=since_ns, at=time.time(), by=by)

    def change(value: bytes | None) -> bytes:
        try:
            known = _decode(value).pipelines if value else {}
        except CaptureError:  # it is of no use to the leader, either
            known = {}
        return msgspec.json.encode(_Requests(pipelines={**known, pipeline: request}))

    try:
        await natty.bucket(BUCKET).modify(requests_key(name), change)
    except BucketNotFoundError:
        await natty.create_bucket(BUCKET, description=DESCRIPTION)
        await natty.bucket(BUCKET).modify(requests_key(name), change)
    return request


def _decode(value: bytes) -> _Requests:
    try:
        return decode(value, _Requests, most_bytes=MOST_BYTES)
    except BadRecordError as error:
        raise CaptureError(
            f"the requests to the pipelines' leader in bucket {BUCKET} can't be read: {error}"
        ) from error

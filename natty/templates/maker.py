"""The work of the elected leader: it looks for waiting messages in the intakes, and creates their streams.

A fenced commit decides which streams to create; then repeatable requests create them. The next leader creates the
streams that were decided and perhaps not created. A former leader can't decide anything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from natty.elections import Term
from natty.errors import (
    BadRecordError,
    ConfigError,
    JetStreamError,
    KeyNotFoundError,
    LeadershipLostError,
    NattyError,
    StreamExistsError,
)
from natty.jetstream import JetStream
from natty.kv import BadKeyError, Bucket, Entry
from natty.kv.json_records import decode
from natty.streams import ServerStreamConfig
from natty.streams.ensure import create_document
from natty.streams.info import subject_counts
from natty.streams.listing import all_streams, stream_names
from natty.templates.template import OWNER, Template, decide
from natty.wire.background import map_concurrently
from natty.wire.repeated import ONCE, Repeated

logger = logging.getLogger("natty.templates")

LOOK_EVERY = 0.5  # seconds: the messages are stored, only their readers wait
REFRESH = 2.0  # seconds after which a deleted stream is noticed
TRY_AGAIN = 10.0  # seconds before a refused stream is tried again
AT_ONCE = 32  # streams that are created at the same time
MAKING = "making"  # the commit with the streams that are being created
_unreadable = Repeated(logger, every=ONCE)


class Job(msgspec.Struct, frozen=True):
    """A stream to create, after the decision."""

    template: str
    filter: str
    document: dict[str, Any]


class Maker:
    """Creates the streams of all templates during one term."""

    def __init__(self, jetstream: JetStream, bucket: Bucket, term: Term) -> None:
        self._jetstream, self._bucket, self._term = jetstream, bucket, term
        self._revision = -1
        self._templates: list[Template] = []
        self._known: dict[str, set[str]] = {}  # template → its streams
        self._compared: dict[str, float] = {}  # template → when that was last compared with the server
        self._failed: dict[str, tuple[float, str]] = {}  # filter → when, and why
        self._reported: dict[str, dict[str, str]] = {}  # template → refused filters, and why
        self._troubles: dict[str, str] = {}  # template → the error of its last look
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Serve the templates until the term ends: LeadershipLostError. Logs the errors of each template."""
        done = False
        while True:
            self._term.check()
            try:
                done = done or await self._finish()
                await self._reload()
            except LeadershipLostError:
                raise
            except NattyError as error:
                self._warn("", str(error))
            for template in self._templates:
                try:
                    await self._serve(template)
                except LeadershipLostError:
                    raise
                except NattyError as error:
                    self._warn(template.name, f"template {template.name}: {error}")
                else:
                    self._troubles.pop(template.name, None)
            await asyncio.sleep(LOOK_EVERY)

    async def _finish(self) -> bool:
        """Create the streams that the leader before us had decided to create."""
        committed = await self._term.read(MAKING) or b"[]"
        try:
            jobs: list[Job] = decode(committed, list[Job])
        except BadRecordError as error:  # the waiting messages lead to a new decision
            _log_unreadable(MAKING, error)
            jobs = []
        if committed != b"[]":
            await asyncio.gather(*(self._make(job) for job in jobs if {"name", "sources"} <= job.document.keys()))
            await self._term.commit(MAKING, b"[]")
        return True

    async def _reload(self) -> None:
        revision = (await self._bucket.status())["last_revision"]
        if revision != self._revision:
            self._templates = await templates_in(self._bucket)
            self._revision = revision

    async def _serve(self, template: Template) -> None:
        """Create the streams that the waiting messages of one template need, and report the refused ones."""
        waiting = await count_waiting(self._jetstream, template)
        if not waiting:
            await self._report(template, {})
            return
        known, now = await self._streams(template), time.monotonic()
        failed = {only: why for only, (_, why) in self._failed.items()}
        again = {only for only, (when, _) in self._failed.items() if now - when >= TRY_AGAIN}
        decision = decide(template, waiting, known, failed, again)
        jobs = [Job(template.name, only, template.document(stream, only)) for stream, only in decision.make.items()]
        if jobs:
            await self._term.commit(MAKING, msgspec.json.encode(jobs))
            await asyncio.gather(*map(self._make, jobs))
            await self._term.commit(MAKING, b"[]")
        failed_now = {job.filter: self._failed[job.filter][1] for job in jobs if job.filter in self._failed}
        await self._report(template, decision.refused | failed_now)

    async def _make(self, job: Job) -> None:
        name = job.document["name"]
        async with self._slots:
            self._term.check()
            try:
                await create_document(self._jetstream, job.document)
            except StreamExistsError:
                if not await self._is_its_own(job):
                    self._fail(job, f"there is a stream {name} that is none of this template's: give it another name")
                    return
            except JetStreamError as error:
                self._fail(job, str(error))
                return
            else:
                logger.info("stream %s takes %s", name, job.filter, extra={"action": "made", "stream": name})
            self._failed.pop(job.filter, None)
            self._known.setdefault(job.template, set()).add(name)

    def _fail(self, job: Job, why: str) -> None:
        self._failed[job.filter] = (time.monotonic(), why)

    async def _is_its_own(self, job: Job) -> bool:
        """Return whether the existing stream is the one to create, perhaps changed by its operator."""
        config = (await self._jetstream.request(f"STREAM.INFO.{job.document['name']}"))["config"]
        same_source = config.get("sources") == job.document["sources"]
        return same_source and (config.get("metadata") or {}).get(OWNER) == job.template

    async def _streams(self, template: Template) -> set[str]:
        """Return the streams of the template."""
        now = time.monotonic()
        if template.name not in self._compared:
            self._known[template.name] = set(await streams_of(self._jetstream, template))
            self._compared[template.name] = now
        elif now - self._compared[template.name] >= REFRESH:
            self._known[template.name] &= set(await stream_names(self._jetstream))
            self._compared[template.name] = now
        return self._known[template.name]

    async def _report(self, template: Template, refused: dict[str, str]) -> None:
        """Store the refused filters for `info` if they have changed, and log the new ones."""
        before = self._reported.get(template.name)
        if refused == before:
            return
        for only, why in refused.items():
            if before is None or before.get(only) != why:
                logger.error("no stream for %s: %s", only, why, extra={"action": "refused", "template": template.name})
        if refused or before is not None or await self._term.read(report_of(template.name)):
            await self._term.commit(report_of(template.name), msgspec.json.encode(refused))
        self._reported[template.name] = refused

    def _warn(self, about: str, text: str) -> None:
        if self._troubles.get(about) != text:
            logger.warning("%s; natty retries", text, extra={"action": "trouble"})
            self._troubles[about] = text


def report_of(template: str) -> str:
    """Return the name of the commit with the refused filters."""
    return f"refused-{template}"


async def templates_in(bucket: Bucket) -> list[Template]:
    """Return the declared templates, sorted by name. Logs each unreadable one once, and skips it."""
    found = await map_concurrently(await bucket.keys(), lambda key: _load(bucket, key))
    return [template for template in found if template is not None]


async def _load(bucket: Bucket, key: str) -> Template | None:
    try:
        template = read_template(await bucket.get(key))
    except KeyNotFoundError:  # removed meanwhile
        return None
    except (ConfigError, BadKeyError) as error:
        _log_unreadable(key, error)
        return None
    _unreadable.forget(key)
    return template


def _log_unreadable(key: str, error: Exception) -> None:
    text = f"{key} of the templates can't be read and is skipped: {error}"
    _unreadable.warning(key, text, extra={"action": "bad_record"})


def read_template(entry: Entry) -> Template:
    """Return the template in an entry. ConfigError if it is not a valid template."""
    try:
        template: Template = decode(entry.value, Template)
        template.check()
    except (NattyError, TypeError, ValueError) as error:  # a setting of another type
        raise ConfigError(f"the entry of template {entry.key} in the bucket is not valid: {error}") from error
    return template


async def count_waiting(jetstream: JetStream, template: Template) -> dict[str, int]:
    """Return how many messages of each subject are in the intake: waiting for their stream, or moving to it."""
    return (await subject_counts(jetstream, template.intake, ">"))[0]


async def streams_of(jetstream: JetStream, template: Template) -> dict[str, ServerStreamConfig]:
    """Return the template's streams, name → configuration."""
    found = (one["config"] for one in (await all_streams(jetstream)).found)
    return {one["name"]: one for one in found if (one.get("metadata") or {}).get(OWNER) == template.name}

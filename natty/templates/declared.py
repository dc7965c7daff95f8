"""The templates of an account: add, edit, list, remove and run them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Unpack

import msgspec

from natty.config.units import write_count
from natty.elections import Election, ElectionOptions, ElectionSettings, Term
from natty.errors import (
    BadRecordError,
    BucketNotFoundError,
    ConfigError,
    JetStreamError,
    KeyExistsError,
    KeyNotFoundError,
    NattyError,
    StreamNotFoundError,
)
from natty.jetstream import JetStream
from natty.kv import Bucket, create_bucket
from natty.kv.json_records import decode
from natty.streams import ServerStreamConfig, create_replicated, delete_stream
from natty.streams.conversion import stream_config_of
from natty.streams.ensure import change_document
from natty.streams.mirror import OVERLAP, take_over, who_takes
from natty.streams.nearest import missing_sentence
from natty.templates.maker import Maker, count_waiting, read_template, report_of, streams_of, templates_in
from natty.templates.template import MAX_STREAMS, Template

BUCKET = "natty-templates"
DESCRIPTION = "stream templates of natty"
ELECTION = "stream-templates"
LOOK_EVERY = 0.2  # seconds between two looks at the messages of an intake
EMPTY_WITHIN = 30.0  # seconds in which messages that have a stream must have left the intake


class TemplateNotFoundError(NattyError):
    """There is no such template."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a template: its streams, waiting subjects without one (→ messages), refused filters (→ reason)."""

    template: Template
    streams: list[str]
    waiting: dict[str, int]
    refused: dict[str, str]
    leader: str | None

    def why(self, subject: str) -> str:
        """Return why a subject waits; empty if there is no known problem."""
        only = self.template.place(subject)[1] if self.template.takes(subject) else subject
        return self.refused.get(only, "")


class Templates:
    """The stream templates of an account. They need at least one node that calls `run`. docs/templates.md"""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._bucket = Bucket(jetstream, BUCKET)

    def __repr__(self) -> str:
        return f"Templates({self._bucket!r})"

    async def add(
        self,
        name: str,
        *,
        subject: str,
        stream: str,
        max_streams: int = MAX_STREAMS,
        max_waiting: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> Template:
        """Declare a template: from now on messages on the subject are stored, see `Template`.

        `settings` of its streams are in the server's terms. They are tested on a stream that is deleted at once.
        ConfigError if a different template has this name, if the template is invalid, if the server refuses it, or if
        another stream takes some of its subjects. UnsupportedError before nats-server 2.14.6: older ones lose messages
        that move out of a work queue.
        """
        self._jetstream.require("a stream template")
        wanted = Template(
            name=name,
            subject=subject,
            stream=stream,
            settings=dict(settings or {}),
            max_streams=max_streams,
            max_waiting=max_waiting,
        )
        wanted.check()
        if (declared := await self._find(name)) is not None:
            _compare(wanted, declared)
        replicas = await self._try(wanted)
        wanted = msgspec.structs.replace(wanted, settings={"num_replicas": replicas, **wanted.settings})
        await create_bucket(self._jetstream, BUCKET, description=DESCRIPTION)
        await self._open_intake(wanted)
        try:
            await self._bucket.create(name, msgspec.json.encode(wanted))
        except KeyExistsError:
            _compare(wanted, await self.get(name))
        return wanted

    async def _find(self, name: str) -> Template | None:
        try:
            return await self.get(name)
        except TemplateNotFoundError:
            return None

    async def _try(self, wanted: Template) -> int:
        """Create a trial stream with these settings, to report a mistake in them now; return its replicas."""
        document = wanted.document(f"{wanted.intake}_TRIAL", wanted.subject) | {"sources": []}
        name = document.pop("name")
        try:
            made = await create_replicated(self._jetstream, name, stream_config_of(document))
        except JetStreamError as error:
            raise ConfigError(f"no stream of template {wanted.name} could be made: {error}") from error
        await delete_stream(self._jetstream, name)
        return int(made["num_replicas"])

    async def _open_intake(self, wanted: Template) -> None:
        document = wanted.intake_document()
        try:
            await create_replicated(self._jetstream, document.pop("name"), stream_config_of(document))
        except JetStreamError as error:
            if error.err_code != OVERLAP:
                raise
            who = await who_takes(self._jetstream, [wanted.subject], besides=wanted.intake)
            raise ConfigError(f"no template for {wanted.subject}: {who}") from error

    async def edit(self, name: str, *, max_streams: int) -> Template:
        """Change how many streams a template may create. TemplateNotFoundError; ConfigError."""
        changed = msgspec.structs.replace(await self.get(name), max_streams=max_streams)
        changed.check()
        await self._bucket.put(name, msgspec.json.encode(changed))
        return changed

    async def get(self, name: str) -> Template:
        """Return a template. TemplateNotFoundError with the nearest names."""
        try:
            return read_template(await self._bucket.get(name))
        except (KeyNotFoundError, BucketNotFoundError) as error:
            names = [one.name for one in await self.ls()]
            raise TemplateNotFoundError(missing_sentence("template", name, names)) from error

    async def ls(self) -> list[Template]:
        """Return the templates, sorted by name."""
        try:
            return await templates_in(self._bucket)
        except BucketNotFoundError:
            return []

    async def info(self, name: str) -> Standing:
        """Return the state of a template. TemplateNotFoundError."""
        template = await self.get(name)
        election = self._election()
        streams = await streams_of(self._jetstream, template)
        waiting = {
            subject: count
            for subject, count in (await count_waiting(self._jetstream, template)).items()
            if not (template.takes(subject) and template.place(subject)[0] in streams)
        }
        lease = await election.leader()
        return Standing(
            template=template,
            streams=sorted(streams),
            waiting=waiting,
            refused=await self._read_refusals(election, name) if waiting else {},
            leader=lease.id if lease else None,
        )

    async def _read_refusals(self, election: Election, name: str) -> dict[str, str]:
        try:
            last = await election.last_commit(report_of(name))
        except BucketNotFoundError:  # there never was a leader
            return {}
        try:
            return decode(last.data, dict[str, str]) if last is not None and last.data else {}
        except BadRecordError:  # the leader writes it again at the next refusal
            return {}

    async def rm(self, name: str, *, force: bool = False) -> list[str]:
        """Remove a template; return its streams, which stay: each takes its own subjects from now on.

        Publishers find no stream for the seconds in which the intake empties. If messages without a stream wait,
        ConfigError without any change; `force` deletes them. TemplateNotFoundError. You can repeat the call.
        """
        template = await self.get(name)
        await self._close_intake(template)
        waiting = await self._wait_until_empty(template)
        if waiting and not force:
            await self._turn(template, [template.subject])
            counts = ", ".join(f"{count} on {subject}" for subject, count in sorted(waiting.items())[:3])
            held = write_count(sum(waiting.values()), "message", "waits", "wait")
            raise ConfigError(
                f"{held} for a stream ({counts}): run the templates, see `natty stream"
                f" template info {name}`, or give --force to delete them"
            )
        streams = await streams_of(self._jetstream, template)
        for config in streams.values():
            await self._detach(template, config)
        await delete_stream(self._jetstream, template.intake)
        await self._bucket.purge(name)
        return sorted(streams)

    async def _detach(self, template: Template, config: ServerStreamConfig) -> None:
        """Let a stream take its own subjects; sources that its operator added stay."""
        sources = config.get("sources") or []
        subjects = [one["filter_subject"] for one in sources if one["name"] == template.intake]
        if subjects:
            others = [one for one in sources if one["name"] != template.intake]
            await take_over(self._jetstream, config, {"subjects": subjects, "sources": others})

    async def _close_intake(self, template: Template) -> None:
        """Stop the intake from taking messages; a missing intake was removed by an earlier try."""
        try:
            await self._turn(template, [f"natty.template.{template.name}.closed"])
        except StreamNotFoundError:
            return

    async def _turn(self, template: Template, subjects: list[str]) -> None:
        await change_document(self._jetstream, {"name": template.intake, "subjects": subjects})

    async def _wait_until_empty(self, template: Template) -> dict[str, int]:
        """Wait until all messages that have a stream have left the intake; return the waiting ones."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EMPTY_WITHIN
        while True:
            try:
                waiting = await count_waiting(self._jetstream, template)
            except StreamNotFoundError:
                return {}
            streams = await streams_of(self._jetstream, template)
            moving = [one for one in waiting if template.takes(one) and template.place(one)[0] in streams]
            if not moving or loop.time() >= deadline:
                return waiting
            await asyncio.sleep(LOOK_EVERY)

    async def run(self, **options: Unpack[ElectionSettings]) -> None:
        """Campaign, and create the streams of all templates while elected. Never returns. Options: `ElectionSettings`.

        UnsupportedError before nats-server 2.14.6, as for `add`.
        """
        self._jetstream.require("a stream template")
        await create_bucket(self._jetstream, BUCKET, description=DESCRIPTION)

        async def make(term: Term) -> None:
            await Maker(self._jetstream, self._bucket, term).run()

        await self._election(**options).run(make)

    def _election(self, **options: Unpack[ElectionSettings]) -> Election:
        return Election(self._jetstream, ElectionOptions(name=ELECTION, **options))


def _compare(wanted: Template, declared: Template) -> None:
    """ConfigError with the difference if the templates differ; settings that `wanted` leaves out are not compared."""
    settings = {key: value for key, value in declared.settings.items() if key in wanted.settings}
    there = msgspec.structs.replace(declared, settings=settings)
    differs = [name for name in wanted.__struct_fields__ if getattr(wanted, name) != getattr(there, name)]
    if differs:
        have, want = getattr(declared, differs[0]), getattr(wanted, differs[0])
        raise ConfigError(
            f"template {wanted.name} exists: {differs[0]} is {have!r}, wanted {want!r}. Remove it first (its"
            " streams stay), or use another name"
        )

"""The settings in `SHIPPER_*` variables, checked before anything is opened."""

import logging
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from natty import Natty, StreamExistsError
from natty.config.units import parse_duration, show_duration
from natty.groups.partitions import fnv1a
from natty.names import BadNameError, check_name

logger = logging.getLogger("shipper")

KEEP_DAYS = 7  # that a day's file is kept, unless SHIPPER_KEEP_DAYS says otherwise
RETENTION = "7d"  # that a line is kept in a new stream, unless SHIPPER_RETENTION says otherwise
DAY = 86_400  # seconds
_TOKENS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class ShipperError(Exception):
    """The shipper can't continue; the message is for its operator."""


class SettingError(ShipperError):
    """A variable is missing, or has an impossible value."""


def is_host(name: str) -> bool:
    """Whether a name can stand in a subject and be a folder's name: letters, digits, `-` and `_`, dots between."""
    return len(name) <= 255 and _TOKENS.fullmatch(name) is not None


def partition_of(host: str, partitions: int) -> int:
    """Return the host's partition: FNV-1a of its name modulo their number, always 0 if there are none."""
    return fnv1a(host.encode()) % partitions if partitions else 0


@dataclass(frozen=True, kw_only=True)
class Route:
    """How the lines of a host get from one program to the other. Both need the same settings."""

    subject: str
    partitions: int = 0
    server_side: bool = False  # one stream, whose server puts the partition into the subject
    retention: float | None = None  # seconds that a line is kept in its stream; None: as it is, RETENTION in a new one

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Route":
        subject, text = _needed(environment, "SHIPPER_SUBJECT"), environment.get("SHIPPER_PARTITIONS", "") or "0"
        if not _TOKENS.fullmatch(subject):
            raise SettingError(f"SHIPPER_SUBJECT is {subject!r}: write letters, digits, - and _, with dots between")
        if not text.isdecimal():
            raise SettingError(f"SHIPPER_PARTITIONS is {text!r}: write a whole number, 0 for no partitions")
        by = environment.get("SHIPPER_PARTITIONED_BY", "") or "producer"
        if by not in ("producer", "server"):
            raise SettingError(f"SHIPPER_PARTITIONED_BY is {by!r}: write producer or server")
        return cls(subject=subject, partitions=int(text), server_side=by == "server", retention=_retention(environment))

    def publish_on(self, host: str) -> str:
        """Return the subject on which a host's lines are published."""
        if self.server_side:
            return f"{self.subject}.{host}"
        return f"{self.subject}.p{partition_of(host, self.partitions)}.{host}"

    def stored_on(self, host: str) -> str:
        """Return the subject, or the filter, under which the stream holds a host's lines."""
        return f"{self.subject}.*.{host}" if self.server_side else self.publish_on(host)

    def prefix(self, partition: int) -> str:
        """Return what stands before the host's name in the subjects of a partition."""
        return f"{self.subject}.{partition}." if self.server_side else f"{self.subject}.p{partition}."

    def stream(self, partition: int) -> str:
        """Return the name of the stream that holds a partition."""
        name = self.subject.replace(".", "_").upper()
        return name if self.server_side else f"{name}_p{partition}"

    async def ensure(self, natty: Natty, partition: int) -> str:
        """Make the stream that holds a partition, if there is none, and return its name."""
        settings: dict[str, Any] = {"subjects": [f"{self.subject}.>"]}
        if self.server_side:
            destination = f"{self.subject}.{{{{partition({max(self.partitions, 1)})}}}}.>"
            settings["subject_transform"] = {"src": f"{self.subject}.>", "dest": destination}
        else:
            settings["subjects"] = [f"{self.prefix(partition)}>"]
        if natty.connection.server_version >= (2, 14):
            settings["allow_batched"] = True  # fast ingest
        name = self.stream(partition)
        with suppress(StreamExistsError):  # with another retention, or in another way: that error is raised below
            await natty.create_stream(name, **settings, max_age=self.retention or RETENTION)
            return name
        await natty.ensure_stream(name, **settings, **await self._extend(natty, name))
        return name

    async def _extend(self, natty: Natty, stream: str) -> dict[str, float]:
        """Return the setting that makes the stream keep lines for longer; none if it keeps them long enough.

        A shorter retention deletes lines, also those that the other program's operator wants to keep: it only warns.
        """
        if self.retention is None:
            return {}
        kept = (await natty.stream_info(stream))["config"]["max_age"] / 1e9  # 0: for ever
        if 0 < kept <= self.retention:
            return {"max_age": self.retention}
        logger.warning(
            "stream %s keeps lines %s, longer than SHIPPER_RETENTION: to delete them sooner, natty stream edit %s"
            " --max-age %s",
            *(stream, f"for {show_duration(kept)}" if kept else "for ever", stream, show_duration(self.retention)),
        )
        return {}


@dataclass(frozen=True, kw_only=True)
class ProduceSettings:
    """Of `produce`: the file to follow, and the host whose it is."""

    route: Route
    file: Path
    host: str
    patience: float = 30.0  # seconds that the file may be missing

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ProduceSettings":
        """Read the environment. SettingError."""
        host = environment.get("HOSTNAME") or socket.gethostname()
        if not is_host(host):
            raise SettingError(
                f"host name {host!r} can't be part of a subject: set HOSTNAME to letters, digits, - and _,"
                " with dots between"
            )
        patience = environment.get("SHIPPER_PATIENCE", "") or "30"
        if not patience.isdecimal():
            raise SettingError(f"SHIPPER_PATIENCE is {patience!r}: write whole seconds")
        file = Path(_needed(environment, "SHIPPER_FILE")).absolute()
        return cls(route=Route.read(environment), file=file, host=host, patience=float(patience))


@dataclass(frozen=True, kw_only=True)
class ConsumeSettings:
    """Of `consume`: the partitions to read, and where their hosts' files go."""

    route: Route
    directory: Path
    output: str
    read_partitions: tuple[int, ...]
    durable: str = "shipper"
    keep_days: int = KEEP_DAYS  # that a day's file is kept

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ConsumeSettings":
        """Read the environment. SettingError."""
        route = Route.read(environment)
        output = _needed(environment, "SHIPPER_OUTPUT")
        output += "" if "%" in output else "-%Y%m%d%H%M"
        if Path(output).is_absolute() or ".." in Path(output).parts:
            raise SettingError(f"SHIPPER_OUTPUT is {output!r}: name a file inside of SHIPPER_DIRECTORY")
        days = [datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(800)]
        if len({day.strftime(output) for day in days}) < len(days):
            raise SettingError(f"SHIPPER_OUTPUT {output!r} gives two days one name: put %Y%m%d into it")
        return cls(
            route=route,
            directory=Path(_needed(environment, "SHIPPER_DIRECTORY")).absolute(),
            output=output,
            read_partitions=_partitions(environment.get("SHIPPER_READ_PARTITIONS", ""), _count(environment, route)),
            durable=_durable(environment),
            keep_days=_keep_days(environment),
        )


def _needed(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise SettingError(f"{name} is not set")
    return environment[name]


def _retention(environment: Mapping[str, str]) -> float | None:
    text = environment.get("SHIPPER_RETENTION")
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        raise SettingError(f"SHIPPER_RETENTION is {text!r}: write how long a line is kept, as 12h, 1d or 7d") from None


def _keep_days(environment: Mapping[str, str]) -> int:
    text = environment.get("SHIPPER_KEEP_DAYS") or str(KEEP_DAYS)
    if not text.isdecimal() or not 0 < int(text) < 100_000:
        raise SettingError(f"SHIPPER_KEEP_DAYS is {text!r}: write a whole number of days, at least 1")
    return int(text)


def _durable(environment: Mapping[str, str]) -> str:
    """Return how the durable consumers' names begin.

    A target was the subject of a push consumer: each target had its own copy of the lines. A durable name is that for
    pull consumers, so the target gives the name.
    """
    durable, target = environment.get("SHIPPER_DURABLE", ""), environment.get("SHIPPER_STREAM_TARGET", "")
    if not target:
        try:
            return check_name("consumer", durable or "shipper")
        except BadNameError as error:
            raise SettingError(f"SHIPPER_DURABLE is {durable!r}: {error}") from None
    if durable:
        raise SettingError(
            "SHIPPER_STREAM_TARGET and SHIPPER_DURABLE both name the consumers: set only SHIPPER_DURABLE"
        )
    if not _TOKENS.fullmatch(target):
        raise SettingError(f"SHIPPER_STREAM_TARGET is {target!r}: write letters, digits, - and _, with dots between")
    return target.replace(".", "_")


def _count(environment: Mapping[str, str], route: Route) -> int | None:
    """Return how many partitions there are; None where only the producers know, as in the series."""
    known = environment.get("SHIPPER_PARTITIONS") or route.server_side
    return max(route.partitions, 1) if known else None


def _partitions(text: str, count: int | None) -> tuple[int, ...]:
    if not text:
        return tuple(range(count or 1))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and (count is None or int(word) < count) for word in words):
        allowed = "whole numbers" if count is None else f"numbers from 0 to {count - 1}"
        raise SettingError(f"SHIPPER_READ_PARTITIONS is {text!r}: write {allowed}, commas between")
    return tuple(sorted(set(map(int, words))))

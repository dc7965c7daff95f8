"""Runs both command lines: an error ends as one clear sentence on standard error and an exit status, not a traceback.

Modules that only some commands need are imported there: every start imports this file.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from io import TextIOWrapper
from typing import Any, TypeVar

import typer

from natty.cli.bash_words import rejoin_words
from natty.cli.early_signals import VALUED
from natty.cli.interrupts import Interrupts, restore_handlers
from natty.cli.terminal import json_text, printable

logger = logging.getLogger("natty.cli")

T = TypeVar("T")

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
_LAYOUT = "\n\t"


def run(app: typer.Typer, name: str, errors: tuple[type[Exception], ...]) -> int:
    """Run the command line and return its exit status: 0, 1 an error, 2 usage, or what the command chose.

    If a signal ends it, the status is 128 plus its number: 130 for SIGINT, 143 for SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # so that no name in the data makes `print` fail
    interrupts = Interrupts()
    try:
        with rejoin_words(name), interrupts.handle():
            status = app(log_first(sys.argv[1:]), prog_name=name, standalone_mode=False)
    except errors as error:
        return _say(name, str(error))
    except ExceptionGroup as group:  # raised by one of our task groups
        if group.split(errors)[1] is not None:
            raise
        return _say(name, "; ".join(dict.fromkeys(sentences(group))))
    except KeyboardInterrupt:
        return _say(name, interrupts.sentence, interrupts.status)
    except typer.Abort:
        return _say(name, "aborted")
    except typer.Exit as exit_:
        return int(exit_.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_ERROR
    except OSError as error:
        logger.debug("a system error ended the command", exc_info=error)
        return _say(name, _system_sentence(error))
    except Exception as error:
        if show := getattr(error, "show", None):  # click's own usage error, shown as click shows it
            status = int(getattr(error, "exit_code", 2))
            if any(isinstance(one.formatter, _JsonFormatter) for one in logging.getLogger().handlers):
                return _say(name, getattr(error, "format_message", error.__str__)(), status)
            show()
            return status
        raise
    if status == EXIT_INTERRUPTED:  # typer turns a KeyboardInterrupt into this
        return _say(name, interrupts.sentence, interrupts.status)
    return int(status or 0)


def log_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the log options before the command. Arguments after `--` stay in place."""
    ours: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            return [*ours, *others, one, *rest]
        if one in VALUED and (value := next(rest, None)) is not None:
            ours += [one, value]
        elif one.startswith(tuple(f"{name}=" for name in VALUED)):
            ours.append(one)
        else:
            others.append(one)
    return ours + others


def _system_sentence(error: OSError) -> str:
    """Return the system's reason, and the file: `/proc/foo: No such file or directory`."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def sentences(error: Exception) -> list[str]:
    """Return the sentence of an error, or those of the errors in a group."""
    if isinstance(error, ExceptionGroup):
        return [sentence for one in error.exceptions for sentence in sentences(one)]
    return [str(error)]


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop if it is installed (the extra `fast`), otherwise on asyncio's loop."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with restore_handlers(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _say(name: str, text: str, status: int = EXIT_ERROR) -> int:
    print(complaint(name, text), file=sys.stderr)
    return status


def complaint(name: str, text: str) -> str:
    """Return the text for standard error when an error ends a command: a sentence, or JSON if the logs are JSON."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _JsonFormatter):
            return handler.format(logging.LogRecord(name, logging.ERROR, "", 0, "%s", (text,), None))
    return f"{name}: {printable(text, also=_LAYOUT)}"


class _JsonFormatter(logging.Formatter):
    _usual = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        from natty.wire.tracing import log_fields

        fields = {name: value for name, value in vars(record).items() if name not in self._usual}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_text(line | self._fields | fields | log_fields(), default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), also=_LAYOUT)


class LogLevel(StrEnum):
    """Minimum level to log."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


def configure_logging(
    level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.TEXT, fields: dict[str, str] | None = None
) -> None:
    """Log to standard error, as lines of text or with one JSON object per line. Only the command line calls this.

    Each JSON object has `fields`, too.
    """
    handler = logging.StreamHandler()
    text = _TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter(fields or {}) if form == LogFormat.JSON else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("nats", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def log_as_daemon(invoked: typer.Context) -> None:
    """Log from INFO on, because this command runs for long; with --log-level, from that level."""
    if invoked.find_root().params["log_level"] is None:
        logging.getLogger().setLevel(logging.INFO)


def version_of(name: str) -> Callable[[bool], None]:
    """Return the function that the option `--version` of this command line calls."""

    def show(wanted: bool) -> None:
        if not wanted:
            return
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"{name} {version('natty-nats')}")
        except PackageNotFoundError:
            print(f"{name}, not installed as a package")
        raise typer.Exit

    return show


def main_of(app: typer.Typer, name: str, *errors: type[Exception]) -> Callable[[], None]:
    """Return the function that the installed script calls."""
    return lambda: sys.exit(run(app, name, errors))

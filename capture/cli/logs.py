"""What a node logs: its configuration's `[logging]`, over which the flags before the command win."""

from __future__ import annotations

import logging
from typing import Any

import typer

from capture.config.settings import Logging
from capture.node.node import life
from natty.cli.run import LogFormat, LogLevel, configure_logging

_set: set[str] = set()  # names of loggers that have a level by the configuration


def flags(invoked: typer.Context) -> dict[str, Any]:
    """Return the flags before the command as settings."""
    given = invoked.find_root().params
    return {"logging.level": given["log_level"], "logging.format": given["log_format"]}


def configure(wanted: Logging) -> None:
    """Log like this from now on."""
    for name in _set:
        logging.getLogger(name).setLevel(logging.NOTSET)
    configure_logging(LogLevel(wanted.level), LogFormat(wanted.format))
    life.setLevel(logging.NOTSET if wanted.level == "error" else logging.INFO)  # two lines of a node's life
    for name, level in wanted.loggers.items():
        logging.getLogger(name).setLevel(level.upper())
    _set.clear()
    _set.update(wanted.loggers)

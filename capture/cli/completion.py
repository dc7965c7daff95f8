"""Completion of names in the shell, from the configuration, or the server if that names no streams.

The configuration is that of the options and the environment; one that is not valid yet, since it is being written or
the command line is not finished, names its streams and pipelines, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from capture.config.load import gather_settings, read
from capture.config.settings import CaptureConfig
from natty.cli import connect
from natty.cli.completion import find
from natty.streams.listing import stream_names


def streams(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams of the configuration, or all streams of the server; an empty list without an answer."""

    def names() -> Iterable[str]:
        config = _load(context)
        known = list(config.streams) or ([config.stream] if config.stream else [])
        return known or connect.call(config.nats, lambda natty: stream_names(natty.jetstream))

    return find(names)


def pipelines(context: typer.Context, incomplete: str) -> list[str]:
    """Return the pipelines of the configuration; an empty list if it can't be read."""
    return find(lambda: [one.name for one in _load(context).pipeline])


def _load(context: typer.Context) -> CaptureConfig:
    """Return the configuration with the options before the cursor. Invalid settings keep their defaults."""
    options = connect.given(context.params)
    flags = {f"nats.{name}": value for name, value in options.items()}
    config, _ = read(gather_settings(context.params.get("config"), flags))
    return config

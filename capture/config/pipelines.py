"""The pipelines of a configuration: their order, their store, and the archives that they read."""

from __future__ import annotations

import re

import msgspec

from capture.archive.heads import PIPELINES
from capture.archive.signing import Signer, load_signer
from capture.archive.trust import Trust
from capture.config.provenance import Given, Place
from capture.config.settings import CaptureConfig
from capture.config.streams import below, each
from capture.errors import ConfigError, PipelineError
from capture.pipelines.definition import Pipeline, order
from capture.pipelines.document import FOLDER
from capture.pipelines.payload_schema import make_ddl
from capture.pipelines.run import choose_method
from capture.stores.plugin import load_function

DECODER = "decoder:"
PIPELINE: Place = ("pipeline",)
SEVERAL = "streams"
"""The name of the election of pipelines that read several archives, unless the configuration names them."""


def find_faults(config: CaptureConfig, given: Given, *, complete: bool = True) -> list[str]:
    """Return a sentence for each mistake in the pipelines of a configuration, with the file and the line of each.

    What they read is compared only if the configuration is `complete`, and nothing is wrong in one of them.
    """
    found = []
    for one in config.pipeline:
        try:
            one.check()
        except ConfigError as error:
            found.append(_locate(str(error), given))
    try:
        PIPELINES.election(pipelines_name(config) or SEVERAL)
    except ConfigError as error:
        found.append(given.blame(str(error), "pipelines_name", "archive"))
    if complete and not found:
        try:
            for one in read_pipelines(config):
                choose_method(one, {each.name: each for each in config.pipeline})
        except (ConfigError, PipelineError) as error:
            found.append(_locate(str(error), given))
    return found


def find_code_faults(config: CaptureConfig, given: Given) -> list[str]:
    """Return a sentence for each function or type of a pipeline that can't be loaded, as `find_faults` does."""
    return [_locate(said, given) for one in config.pipeline if (said := find_code_fault(one))]


def find_code_fault(one: Pipeline) -> str:
    """Return why the pipeline's function, or the type of its schema, can't be loaded; "" if it can."""
    try:
        if one.python:
            load_function(one.python, f"function of pipeline {one.name}", ())
        settle_schema(one)
    except ConfigError as error:
        return str(error)
    return ""


def settle_schema(one: Pipeline) -> str:
    """Return the type of a pipeline's payloads: Spark's DDL, "infer", or "". ConfigError if it can't be loaded."""
    if not one.schema.startswith(DECODER):
        return one.schema
    what = f"schema of pipeline {one.name}"
    return make_ddl(load_function(one.schema.removeprefix(DECODER), what, ()), f"the {what}")


def _locate(sentence: str, given: Given) -> str:
    """Return the sentence with the place of the last pipeline that it names."""
    whole = given.settings.get(PIPELINE)
    if whole is None:
        return sentence
    names = [one.get("name") for one in whole.value if isinstance(one, dict)]
    numbers = [
        number
        for number, name in enumerate(names)
        if name and re.search(rf"pipeline {re.escape(name)}(?!\w)", sentence)
    ]
    at = given.origin_in(PIPELINE, numbers[-1]) if numbers else whole.origin
    return f"{sentence} ({at})"


def read_pipelines(config: CaptureConfig) -> list[Pipeline]:
    """Return the pipelines of a configuration file, each after those that it reads. ConfigError names a wrong one."""
    for one in config.pipeline:
        one.check()
    streams = {one.stream: one for one in archives(config)}
    found = order(config.pipeline, streams)
    for one in found:
        if one.follows:
            _check_followed(one, streams.get(one.reads[0]))
    return found


def _check_followed(pipeline: Pipeline, archive: CaptureConfig | None) -> None:
    """Raise ConfigError if what a pipeline follows would not be what its archive has."""
    if archive is None:
        why = f"reads a stream, and {pipeline.reads[0]} is a pipeline"
    elif archive.encrypt:
        why = "writes a table that is not encrypted, and its archive is (encrypt = true)"
    elif len(archive.filter_subjects) > 1:
        why = f"reads one subject, or all: filter_subjects of {archive.stream} has several"
    else:
        return
    raise ConfigError(f'pipeline {pipeline.name}: trigger = "stream" {why}. Use trigger = "schedule"')


def archives(config: CaptureConfig) -> list[CaptureConfig]:
    """Return the configuration of each archive that pipelines may read: of all streams. ConfigError."""
    return each(msgspec.structs.replace(config, stream="") if config.streams else config)


def pipelines_store(config: CaptureConfig) -> str:
    """Return the store of the pipelines' tables: a folder of the archive, or beside the archives of several streams."""
    return below(config.store, FOLDER)


def pipelines_name(config: CaptureConfig) -> str:
    """Return the name of the pipelines' election, of which `heads.PIPELINES` makes the whole one."""
    return config.pipelines_name or config.archive or (SEVERAL if config.streams else config.stream)


def pipelines_trust(config: CaptureConfig) -> Trust:
    """Return what to check of the pipelines' documents before they are trusted. Raises ConfigError."""
    return config.trust(_signed_name(config))


def pipelines_signer(config: CaptureConfig) -> Signer | None:
    """Return the signer of the pipelines' documents; None if no key is given. Raises ConfigError."""
    return load_signer(_signed_name(config), config.signing_key_file)


def _signed_name(config: CaptureConfig) -> str:
    """Return the name that the documents are signed for: the archive's, or one for several archives without a name."""
    return config.archive or (SEVERAL if config.streams else config.stream)


def find_pipeline(config: CaptureConfig, name: str) -> Pipeline:
    """Return the pipeline with this name. ConfigError if there is none, with the names that there are."""
    for one in read_pipelines(config):
        if one.name == name:
            return one
    known = ", ".join(one.name for one in config.pipeline) or "none"
    raise ConfigError(f"there is no pipeline {name!r}; configured are: {known}")

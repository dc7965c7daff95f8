"""Reads a Dockerfile: its stages with their steps, and what their images run. Refuses what it does not know."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """A stage: its steps in order, (instruction, arguments), and the settings of its image."""

    name: str
    base: str
    steps: list[tuple[str, list[str]]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    command: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)


def instructions(text):
    """Yield each instruction with its text; lines that end in a backslash are joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def read(file: Path) -> dict[str, Stage]:
    """Return the stages by name; a stage inherits the settings of the stage that it is based on."""
    arguments, stages, stage = {}, {}, None
    for name, rest in instructions(file.read_text()):
        if name == "ARG" and stage is None:
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif name == "FROM":
            base, _, alias = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], rest).partition(" AS ")
            stage = stages[alias] = inherit(stages.get(base), alias, base)
        else:
            follow(stage, name, rest)
    return stages


def inherit(parent, name, base):
    if parent is None:
        return Stage(name, base)
    return Stage(
        name, base, [], dict(parent.environment), parent.user, parent.folder, parent.command, parent.entrypoint
    )


def follow(stage, name, rest):
    """Apply one instruction to a stage."""
    match name:
        case "RUN":
            options, command = re.match(r"((?:--\S+ )*)(.*)", rest, re.DOTALL).groups()
            assert all(one.startswith("--mount=type=cache,") for one in options.split()), rest
            stage.steps.append(("RUN", [stage.user, stage.folder, command]))
        case "COPY":
            stage.steps.append(("COPY", [stage.folder, *rest.split()]))
        case "ENV":
            stage.environment |= dict(one.split("=", 1) for one in shlex.split(rest))
        case "USER":
            stage.user = rest
        case "WORKDIR":
            stage.folder = rest
            stage.steps.append(("WORKDIR", [rest]))
        case "CMD":
            stage.command = json.loads(rest)
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        case _:
            raise AssertionError(f"the Dockerfile has an instruction that is not known here: {name} {rest}")

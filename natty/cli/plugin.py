"""natty as a plugin of the `nats` tool: `natty --fisk-introspect` prints the command tree in that tool's format.

The format is the ApplicationModel of the library behind `nats` (choria-io/fisk, model.go and app_plugin.go), which
starts a plugin with the arguments that it got. Two of its properties shape the tree here: it passes arguments in no
particular order unless they are one repeated argument, and it has no options before a command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import typer

Model = dict[str, Any]


def introspect(context: typer.Context, wanted: bool) -> None:
    """Print the command tree as JSON and exit; the option `--fisk-introspect` calls this."""
    if wanted:
        print(json.dumps(model_of(context.find_root().command), ensure_ascii=False))
        raise typer.Exit


def model_of(root: Any) -> Model:
    """Return a click command line as an ApplicationModel. The model has no place for the root's own options."""
    from importlib.metadata import PackageNotFoundError, version

    about = {"name": "natty", "help": root.help, "author": "natty-nats"}
    with suppress(PackageNotFoundError):
        about["version"] = version("natty-nats")
    return {**about, "commands": [_command(one) for one in root.commands.values()]}


def _command(command: Any) -> Model:
    text = (command.help or command.short_help or "").strip()
    model: Model = {"name": command.name, "help": text.partition("\n\n")[0].replace("\n", " "), "help_long": text}
    if command.hidden:
        model["hidden"] = True
    if children := getattr(command, "commands", None):
        return model | {"commands": [_command(one) for one in children.values()]}
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    return model | {"flags": [flag for one in options for flag in _flags(one)], "args": _arguments(arguments)}


def _flags(option: Any) -> Iterator[Model]:
    """Yield an option's flags: one, or one for each side of a pair like --cert/--plain that is not --x/--no-x."""
    name, short = _names(option.opts)
    model: Model = {"name": name, "help": option.help or "", "boolean": option.is_flag, "cumulative": option.multiple}
    model |= {"short": ord(short)} if short else {}
    model |= {key: True for key in ("required", "hidden") if getattr(option, key)}
    if option.is_flag:
        others = [_names([one])[0] for one in option.secondary_opts]
        negatable = others == [f"no-{name}"]
        model |= {"default": ["true"]} if option.default is True else {}
        yield model | ({"negatable": True} if negatable else {})
        for other in [] if negatable else others:
            yield {"name": other, "help": model["help"], "boolean": True, "cumulative": False}
        return
    if default := _default(option):
        model["default"] = default
    yield model | ({"place_holder": option.metavar} if option.metavar else {})


def _arguments(arguments: Sequence[Any]) -> list[Model]:
    """Return a command's arguments; several become one, which keeps their order."""
    if len(arguments) < 2:
        return [_argument(one) for one in arguments]
    shown = " ".join(f"<{one.name}>" if one.required else f"[<{one.name}>]" for one in arguments)
    described = "; ".join(f"{one.name}: {getattr(one, 'help', '') or ''}" for one in arguments)
    required = any(one.required for one in arguments)
    return [
        {"name": "arguments", "help": described, "place_holder": shown, "cumulative": True}
        | ({"required": True} if required else {})
    ]


def _argument(argument: Any) -> Model:
    text = getattr(argument, "help", "") or ""
    model: Model = {"name": argument.name, "help": text, "cumulative": argument.nargs == -1}
    return model | ({"required": True} if argument.required else {})


def _names(options: Sequence[str]) -> tuple[str, str]:
    """Return the first long name and the short one, without dashes; "" if there is none."""
    long = next((one[2:] for one in options if one.startswith("--")), "")
    return long, next((one[1:] for one in options if not one.startswith("--")), "")


def _default(option: Any) -> list[str]:
    if option.default is None or callable(option.default):
        return []
    values = option.default if isinstance(option.default, list | tuple) else [option.default]
    return [str(one.value if isinstance(one, Enum) else one) for one in values]

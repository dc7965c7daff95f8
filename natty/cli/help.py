"""The help of a command: its own options, those of the connection, and examples."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

CONNECTION = "Connection options"
"""The heading (`rich_help_panel`) of the options that all commands with a connection share."""
WHOLE = 10**6  # characters of a summary
LONGEST_LINE = 76  # characters of an example, with its indent
_LIST = re.compile(r"<list\[(.*)\]>")
_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\S)+""")
"""A word of a command line; quoted parts belong to it, with their spaces."""


class ExampleCommand(TyperCommand):
    """A command whose help has the connection's options under a heading of their own, and examples at its end.

    The usage has arguments as manual pages have them: NAME, [BODY], KEY...
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage after the command's name."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        names = [placeholder(one) if one.required else f"[{placeholder(one)}]" for one in arguments]
        return [*super().collect_usage_pieces(ctx)[:1], *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options, and the options of the connection."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], CONNECTION: []}
        for parameter in self.get_params(ctx):
            if row := parameter.get_help_record(ctx):
                sections[_heading(parameter)].append((_label(parameter, row[0]), row[1]))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each under the name that was called; a long one is continued as shells read it."""
        super().format_epilog(ctx, formatter)
        module = getattr(ctx.find_root().command, "examples", "")
        path = _path(ctx)
        if module and (found := examples(import_module(module).EXAMPLES, path)):
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for example in found:
                    for line in fold(ctx.command_path + example.removeprefix(path), LONGEST_LINE - len(indent)):
                        formatter.write(f"{indent}{line}\n")


class SummaryGroup(TyperGroup):
    """A group whose help has the whole summary of each command: a long one is folded, not cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and summaries of the commands that are not hidden."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        if rows := [(name, one.get_short_help_str(WHOLE)) for name, one in found if one and not one.hidden]:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def examples(text: str, path: str) -> list[str]:
    """Return the lines of a text that are examples of a command, `natty stream add`."""
    return [line for line in text.strip().splitlines() if f"{line} ".startswith(f"{path} ")]


def fold(command: str, width: int) -> list[str]:
    """Return a command line as lines of at most `width` characters, which a shell reads as one.

    Words stay whole, and an option stays with its value.
    """
    parts: list[str] = []
    for word in _WORD.findall(command):
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = parts[:1]
    for part in parts[1:]:
        if len(f"{lines[-1]} {part} \\") > width:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return lines


def show_examples(app: typer.Typer) -> None:
    """Make each command of an application, and of its groups, an `ExampleCommand`, and each group a `SummaryGroup`."""
    for command in app.registered_commands:
        if command.cls in (None, TyperCommand):
            command.cls = ExampleCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.cls = SummaryGroup
            show_examples(group.typer_instance)


def placeholder(argument: Any) -> str:
    """Return an argument's name for people: `[KEY]...` and `key` are KEY..., or KEY if there can be one only."""
    name = str(argument.metavar or argument.name.replace("_", "-").upper()).removesuffix("...")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return f"{name}..." if argument.nargs == -1 else name


def _label(parameter: Any, label: str) -> str:
    """Return what stands before a parameter's help: of a list, the type of its items."""
    label = _LIST.sub(r"<\1>", label)
    if parameter.param_type_name != "argument":
        return label
    _, bracket, kind = label.partition(" <")
    return f"{placeholder(parameter)}{bracket}{kind}"


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return CONNECTION if getattr(parameter, "rich_help_panel", None) == CONNECTION else "Options"


def _path(ctx: Any) -> str:
    """Return the names of the command and of the groups around it. An alias has the name of its command."""
    names: list[str] = []
    while ctx.parent is not None:
        names.append(_name(ctx.parent.command, ctx.command))
        ctx = ctx.parent
    return " ".join([ctx.find_root().info_name, *reversed(names)])


def _name(group: Any, command: Any) -> str:
    """Return the name of a command; of a hidden alias that of the command with the same text."""
    if not command.hidden:
        return str(command.name)
    same = [one.name for one in group.commands.values() if not one.hidden and one.help == command.help]
    return str(same[0] if same else command.name)

"""The help of each command: headings, and examples that the command line accepts."""

import re
import shlex
import subprocess

import pytest
from typer.main import get_command

from capture.cli import examples as capture_examples
from capture.cli.app import make_app as make_capture_app
from natty.cli import examples as natty_examples
from natty.cli.app import make_app as make_natty_app
from natty.cli.help import CONNECTION, LONGEST_LINE, examples, fold, placeholder
from natty.cli.run import log_first

LINES = [line for module in (natty_examples, capture_examples) for line in module.EXAMPLES.splitlines() if line.strip()]
ROOTS = {"natty": get_command(make_natty_app()), "capture": get_command(make_capture_app())}


def context_of(words):
    """Return the context of the command that these words call, and the words after it. Runs nothing."""
    name, *rest = words
    root = ROOTS[name]
    context = root.make_context(name, log_first(rest), resilient_parsing=True)
    rest = context._protected_args + context.args
    while hasattr(context.command, "commands"):
        command = context.command.commands[rest[0]]
        if not hasattr(command, "commands"):
            return type(context)(command, parent=context, info_name=rest[0]), rest[1:]
        context = command.make_context(rest[0], rest[1:], parent=context, resilient_parsing=True)
        rest = context._protected_args + context.args
    raise AssertionError(words)


def leaves(command, path):
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, [*path, name])
    if not hasattr(command, "commands"):
        yield path


COMMANDS = [path for name, root in ROOTS.items() for path in leaves(root, [name])]


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_accepted_by_its_command(line):
    context, rest = context_of(shlex.split(line))
    context.command.parse_args(context, rest)
    assert context.command_path in line


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_ends_with_examples(path):
    context, _ = context_of(path)
    _, found, shown = context.get_help().partition("\nExamples:\n")
    assert found, f"no example of {' '.join(path)}"
    name = context.command_path
    commands = [" ".join(one.split()) for one in shown.replace("\\\n", "").splitlines()]
    assert all(f"{command} ".startswith(f"{name} ") for command in commands), f"an example of another command: {shown}"
    if not context.command.hidden:
        assert [command for command in commands if command not in LINES] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_example_fits_a_narrow_terminal_and_can_be_copied(path):
    context, _ = context_of(path)
    _, _, shown = context.get_help().partition("\nExamples:\n")
    assert [line for line in shown.splitlines() if len(line) > LONGEST_LINE] == []


def test_a_long_example_is_continued_as_a_shell_reads_it():
    command = "printf '%s|' --query 'SELECT a  FROM b' --config capture.toml --last"
    lines = fold(command, 30)
    assert lines == [
        "printf '%s|' \\",
        "    --query 'SELECT a  FROM b' \\",
        "    --config capture.toml \\",
        "    --last",
    ]
    said = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    assert said == "--query|SELECT a  FROM b|--config|capture.toml|--last|"


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (r"'it'\''s' b", ["it's", "b"]),
        ("--header='A: b c' d", ["--header=A: b c", "d"]),
        (r"""'a "'"b"c\ d e""", ['a "bc d', "e"]),
    ],
)
@pytest.mark.parametrize("width", [1, 12, 80])
def test_a_word_with_quoted_parts_stays_whole(words, values, width):
    lines = fold(f"printf '%s|' {words}", width)
    said = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    assert said.split("|")[:-1] == values


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_usage_has_no_brackets_but_those_of_what_may_be_left_out(path):
    context, _ = context_of(path)
    usage, _, rest = " ".join(context.get_help().split()).partition(" Arguments: ")
    usage = usage.partition(f" {context.command.help.split()[0]} ")[0]
    assert not re.search(r"[{}<]|\[\[|\]\]|\.\.\.\]?\.\.\.", usage)
    for argument in context.command.params:
        if argument.param_type_name == "argument":
            assert placeholder(argument) in usage
            assert f"{placeholder(argument)} <" in rest
    assert "<list[" not in rest


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("natty leader run", "[OPTIONS] NAME -- COMMAND..."),
        ("natty kv watch", "[OPTIONS] BUCKET [KEY...]"),
        ("natty pub", "[OPTIONS] SUBJECT [BODY]"),
        ("natty schedule rm", "[OPTIONS] STREAM NAME..."),
        ("natty group static create balanced", "[OPTIONS] STREAM GROUP PARTITIONS [FILTER] MEMBER..."),
        ("capture import", "[OPTIONS] BACKUP_DIR [ARCHIVE]"),
    ],
)
def test_the_usage_is_that_of_a_manual_page(words, usage):
    context, _ = context_of(words.split())
    assert " ".join(context.get_usage().split()) == f"Usage: {words} {usage}"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_connections_options_have_a_heading_of_their_own(path):
    context, _ = context_of(path)
    own, found, connection = context.get_help().partition(f"\n{CONNECTION}:\n")
    assert "--creds" not in own
    assert ("--creds" in connection) == bool(found)
    assert "--help" in own


def test_a_command_gets_its_own_examples_and_not_those_of_a_longer_name():
    text = "natty kv ls\nnatty kv ls settings\nnatty kv lsx"
    assert examples(text, "natty kv ls") == ["natty kv ls", "natty kv ls settings"]

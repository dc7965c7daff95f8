"""Every option that means seconds takes a duration: 30s, 1h30m; a bare number is seconds."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from capture.cli.app import make_app as make_capture
from natty.cli.app import make_app as make_natty

NO_TIMES = {"--rate"}  # messages per second


def options_of(command, path=()):
    """Yield the words and the option of each option of a command line."""
    for name in (below := getattr(command, "commands", {})):
        yield from options_of(below[name], (*path, name))
    for option in () if below else command.params:
        yield path, option


@pytest.mark.parametrize("make", [make_natty, make_capture])
def test_no_option_of_a_command_takes_only_a_number_of_seconds(make):
    bare = {
        (*path, option.opts[0])
        for path, option in options_of(get_command(make()))
        if option.type_descriptor.annotation is float and not option.type_descriptor.parameter_info.parser
    }
    assert {one for one in bare if one[-1] not in NO_TIMES} == set()


@pytest.mark.parametrize(
    ("make", "words", "option"),
    [
        (make_natty, "leader run x -- true", "--lease"),
        (make_natty, "leader run x -- true", "--wait"),
        (make_natty, "stream template run", "--lease"),
        (make_capture, "run", "--max-age"),
        (make_capture, "sweep", "--wait"),
        (make_capture, "compact", "--wait"),
    ],
)
def test_what_is_not_a_duration_is_named(make, words, option):
    command, *rest = words.split(" -- ")
    given = [*command.split(), f"{option}=soon", "--", *rest]
    done = CliRunner().invoke(make(), given)
    assert (done.exit_code, "'soon' is not a duration; write 30s, 1h30m or 7d" in done.output) == (2, True), done.output

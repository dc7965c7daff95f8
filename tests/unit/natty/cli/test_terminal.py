import contextlib
import io
import json
import logging

import pytest

from natty.cli.run import LogFormat, configure_logging
from natty.cli.tables import print_facts, print_table
from natty.cli.terminal import json_text, printable, say, write
from natty.errors import legible
from natty.names import decode, encode

HOSTILE = b"a\x1b[2J\x1b]0;title\x07\r\x9b31m\xc2\x9b31m\xe2\x80\xae[red]\xff"


class Screen(io.StringIO):
    """A terminal that takes UTF-8 and nothing else."""

    def isatty(self):
        return True

    def write(self, text):
        text.encode()
        return super().write(text)


def on_a_terminal(show, *arguments):
    with contextlib.redirect_stdout(Screen()) as screen:
        show(*arguments)
    return screen.getvalue()


def plain(text):
    return all(one.isprintable() or one in "\n\t" for one in text)


def test_bytes_that_are_not_utf8_survive_as_text():
    assert encode(decode(HOSTILE)) == HOSTILE
    assert encode(decode(bytes(range(256)))) == bytes(range(256))


def test_legible_text_can_be_encoded_and_names_the_bytes():
    assert legible("a\udcffb\udc80 größe \ud800") == r"a\xffb\x80 größe \ud800"
    assert legible(decode(HOSTILE)).encode()


def test_what_is_printable_stays_as_it_is():
    assert printable("größe 東京 [red]\\x1b") == "größe 東京 [red]\\x1b"
    assert printable("two\nlines\t", also="\n\t") == "two\nlines\t"


def test_what_a_terminal_could_act_on_is_escaped():
    assert printable(decode(HOSTILE)) == r"a\x1b[2J\x1b]0;title\x07\r\x9b31m\x9b31m\u202e[red]\xff"


@pytest.mark.parametrize(
    ("show", "argument"), [(write, HOSTILE), (say, decode(HOSTILE)), (say, "\ud800"), (say, "two\nlines")]
)
def test_a_terminal_gets_escaped_text(show, argument):
    shown = on_a_terminal(show, argument)
    assert plain(shown)
    assert shown.count("\n") == (show is say)


def test_a_pipe_gets_every_byte_as_it_is(capfdbinary):
    write(HOSTILE)
    say(decode(HOSTILE), "\ud800")
    assert capfdbinary.readouterr().out == HOSTILE + HOSTILE + b"\n\\ud800\n"


@pytest.mark.parametrize(
    ("show", "arguments"),
    [
        (print_table, (("subject",), [(decode(HOSTILE),)])),
        (print_facts, ("Message", [("subject", decode(HOSTILE))])),
    ],
)
def test_tables_and_facts_escape_what_is_in_them(show, arguments, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")  # else the head of a table is bold
    monkeypatch.setenv("COLUMNS", "200")
    shown = on_a_terminal(show, *arguments)
    assert plain(shown)
    assert printable(decode(HOSTILE)) in shown


@pytest.mark.parametrize("value", ["größe", "\x1b[2J", "\x9b31m", "\x7f", "\udcff", "lone \ud800", "two\nlines"])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_says_the_same_and_any_output_takes_it(value, indent):
    text = json_text({"subject": value}, indent=indent)
    assert json.loads(text) == {"subject": value}
    assert plain(text)
    text.encode()


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_log_line_escapes_what_is_in_it(form, monkeypatch):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", Screen())
    try:
        configure_logging(form=form)
        root.handlers[0].setStream(screen := Screen())
        logging.getLogger("natty.test").warning("subject %s", decode(HOSTILE), extra={"subject": decode(HOSTILE)})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert screen.getvalue().count("\n") == 1
    assert plain(screen.getvalue())

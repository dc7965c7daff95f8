import contextlib
import io
import json
import re

import pytest
from rich.console import Group

from natty.cli.tables import SCREEN, PlainConsole, Rows, print_document, print_facts, print_table


class Screen(io.StringIO):
    """A terminal 40 characters wide."""

    def isatty(self):
        return True


@pytest.fixture
def on_screen(monkeypatch):
    """Return a function that tells what another one prints on a terminal."""
    for name, value in {"COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def printed_by(show, *arguments, **options):
        with contextlib.redirect_stdout(Screen()) as screen:
            show(*arguments, **options)
        return screen.getvalue()

    return printed_by


ROWS = [("ORDERS", 5), ("größe東京", 1234)]


def test_a_table_has_columns_under_each_other(capsys):
    print_table(("stream", ">messages"), ROWS, total=("total", 1239))
    assert capsys.readouterr().out.splitlines() == [
        " stream     messages",
        " ORDERS            5",
        " größe東京      1234",
        " total          1239",
    ]


def test_a_piped_line_is_as_long_as_it_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("stream", "subjects"), [("S" * 30, "x" * 500)])
    assert f" {'S' * 30}  {'x' * 500}\n" in capsys.readouterr().out


def plain(shown):
    return re.sub("\x1b[^m]*m", "", shown)


def test_a_table_on_a_terminal_is_folded_between_words(on_screen):
    reason = "no such customer, " * 5 + "1234567890"
    shown = plain(on_screen(print_table, ("stream", ">n", "reason"), [("ORDERS", 5, reason)]))
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.split() == f"stream n reason ORDERS 5 {reason}".split()


def test_where_words_or_numbers_would_be_broken_each_row_is_a_block(on_screen):
    path, columns = "blocks/stream=T/" + "x" * 60, ("path", ">bytes", "empty", "größe東京")
    shown = plain(
        on_screen(print_table, columns, [(path, "1,234", "", 1), ("b", "5", "", 2)], total=("total", 6, "", 3))
    )
    assert [line.rstrip() for line in shown.splitlines()] == [
        f" path       {path}",
        " bytes      1,234",
        " größe東京  1",
        "",
        " path       b",
        " bytes      5",
        " größe東京  2",
        "",
        " path       total",
        " bytes      6",
        " größe東京  3",
    ]


def test_a_column_of_sentences_shrinks_to_no_less_than_24_characters(on_screen):
    rows = [("ORDERS_OF_EUROPE", "a b c d e f g h i j k l m n")]
    assert "stream  ORDERS" in plain(on_screen(print_table, ("stream", "reason"), rows))


def test_a_console_in_a_pipe_folds_no_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    numbers = Rows(("stream", *(f">number {n}" for n in range(9))), [("ORDERS", *range(10**9, 10**9 + 9))])
    PlainConsole().print(Group("word " * 30, numbers), crop=False)
    sentence, head, row = capsys.readouterr().out.splitlines()
    assert sentence.rstrip() == ("word " * 30).rstrip()
    assert row.split() == ["ORDERS", *map(str, range(10**9, 10**9 + 9))]
    assert len(head) == len(row)


@pytest.mark.parametrize("columns", [(), ("",)])
def test_a_table_may_have_no_columns_and_no_names(on_screen, columns):
    assert on_screen(print_table, columns, []).strip() == ""


def test_a_long_table_is_not_laid_out(on_screen):
    shown = on_screen(print_table, ("stream", "subjects"), [("ORDERS", "x" * 100)] * (SCREEN + 1))
    assert len(shown.splitlines()) == SCREEN + 2


def test_a_name_is_no_markup(on_screen):
    assert "[red]ORDERS[/red]" in on_screen(print_table, ("stream",), [("[red]ORDERS[/red]",)])


def test_facts_leave_out_what_is_empty_and_keep_zero_and_no(capsys):
    facts = [("Subjects", ["a", "b"]), ("Empty", ""), ("None", None), ("List", []), ("Messages", 12345), ("Zero", 0)]
    print_facts("Stream ORDERS", [*facts, ("Sealed", False)])
    assert capsys.readouterr().out.splitlines() == [
        "Stream ORDERS",
        "  Subjects: a, b",
        "  Messages: 12,345",
        "      Zero: 0",
        "    Sealed: no",
    ]


@pytest.mark.parametrize("data", [{"name": "größe"}, {"header": "\udcff"}, [1, 2], {}])
def test_documents_are_json_whatever_is_in_them(capsys, data):
    print_document(data)
    assert json.loads(capsys.readouterr().out) == data


def test_a_short_document_is_coloured_on_a_terminal_and_a_long_one_not(on_screen):
    assert "\x1b[" in on_screen(print_document, {"name": "ORDERS"})
    assert "\x1b[" not in on_screen(print_document, ["x" * 200_000])

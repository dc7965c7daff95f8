import asyncio
import signal
import sys

import pytest
import typer

from natty.cli.interrupts import Interrupts
from natty.cli.run import log_first, run, run_async
from natty.errors import NattyError


def ended_by(error, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["natty"])
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_errors_out_of_task_groups_are_sentences_each_said_once(capsys, monkeypatch):
    inner = ExceptionGroup("inner", [NattyError("no stream S"), NattyError("no consumer c")])
    group = ExceptionGroup("outer", [inner, NattyError("no stream S")])
    assert run(ended_by(group, monkeypatch), "natty", (NattyError,)) == 1
    assert capsys.readouterr().err == "natty: no stream S; no consumer c\n"


def test_a_fault_of_ours_in_a_task_group_is_not_hidden(monkeypatch):
    group = ExceptionGroup("outer", [NattyError("no stream S"), ZeroDivisionError("a fault")])
    with pytest.raises(ExceptionGroup):
        run(ended_by(group, monkeypatch), "natty", (NattyError,))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("run --log-level info --store s", "--log-level info run --store s"),
        ("--log-level error run --log-format=json", "--log-level error --log-format=json run"),
        ("leader run n -- program --log-level x", "leader run n -- program --log-level x"),
        ("stream ls --log-level", "stream ls --log-level"),
        ("", ""),
    ],
)
def test_the_options_of_the_log_may_stand_behind_the_command(written, read):
    assert log_first(written.split()) == read.split()


def test_a_second_hang_up_does_not_disturb_the_cleaning_up():
    interrupts = Interrupts()
    cleaned = []

    def work():
        with interrupts.handle():
            try:
                signal.raise_signal(signal.SIGHUP)
            finally:
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
                cleaned.append(True)

    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert cleaned == [True]
    assert interrupts.status == 128 + signal.SIGHUP


def test_a_handler_that_an_event_loop_leaves_does_not_stay_after_the_command():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Interrupts().handle():
            signal.signal(signal.SIGTERM, lambda *_: None)  # as uvloop's, which is closed then
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_no_closed_event_loop_keeps_a_signal(number):
    async def listen():
        asyncio.get_running_loop().add_signal_handler(number, print)

    before = signal.signal(number, signal.default_int_handler)
    try:
        run_async(listen())
        acting = (signal.default_int_handler, signal.SIG_DFL)  # asyncio's own loop leaves SIG_DFL for all but SIGINT
        assert signal.getsignal(number) in acting
    finally:
        signal.signal(number, before)

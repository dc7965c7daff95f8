"""Options are checked when they are made: each field of each options class, as its type hint says."""

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import natty
from natty.config.options import Count, Seconds, check_value, make_options
from natty.consuming.options import ConsumeOptions
from natty.elections import ElectionOptions, election_options
from natty.groups import JoinOptions
from natty.kv import WatchOptions
from natty.publishing.options import PublisherOptions
from natty.pulling.requests import PullOptions

ROOT = Path(natty.__file__).parent
NEEDED = {"ElectionOptions": {"name": "sweeper"}, "ScheduleOptions": {"after": 1}}
ELSEWHERE = {"ServerOptions"}  # of the test server


def option_classes():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Options") and node.name not in ELSEWHERE:
                module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
                yield getattr(import_module(module), node.name)


CLASSES = list(option_classes())
FIELDS = [
    pytest.param(
        one, field.name, get_type_hints(one, include_extras=True)[field.name], id=f"{one.__name__}.{field.name}"
    )
    for one in CLASSES
    for field in fields(one)
]


def alternatives(hint):
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def ranges(hint):
    """Yield a function that puts a number into a value of the hint, the number's type, and its range."""
    for one in alternatives(hint):
        if get_origin(one) is Annotated:
            kind, allowed = get_args(one)
            yield (lambda number: number), kind, allowed
        elif get_origin(one) in (Sequence, tuple) and get_origin(get_args(one)[0]) is Annotated:
            kind, allowed = get_args(get_args(one)[0])
            yield (lambda number: (number,)), kind, allowed


def bare_numbers(hint):
    if get_origin(hint) is Annotated:
        return False
    return hint in (int, float) or any(map(bare_numbers, get_args(hint)))


def make(kind, name, value):
    return kind(**{**NEEDED.get(kind.__name__, {}), name: value})


def test_all_classes_of_options_are_found():
    assert {ConsumeOptions, ElectionOptions, JoinOptions, PublisherOptions, PullOptions, WatchOptions} <= {*CLASSES}


@pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)
def test_a_value_of_another_type_is_refused_by_its_name(kind, name, hint):
    takes_text = any(one is str or get_origin(one) is Literal for one in alternatives(hint))
    for value in [object(), *([] if takes_text else ["3", b"3"])]:
        with pytest.raises(TypeError, match=f"^{name} is .*; write "):
            make(kind, name, value)


@pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)
def test_a_number_out_of_its_range_is_refused_by_its_name(kind, name, hint):
    assert not bare_numbers(hint), "give the number a range, such as Count or Seconds"
    for value_of, number, allowed in ranges(hint):
        wrong = [allowed.least if allowed.above else allowed.least - 1]
        wrong += [allowed.most * 2] if math.isfinite(allowed.most) else []
        wrong += [math.nan, -math.inf] if number is float else []
        for one in wrong:
            with pytest.raises(ValueError, match=f"^{name} is .*; write "):
                make(kind, name, value_of(one))
        with pytest.raises(TypeError, match=f"^{name} is .*; write "):
            make(kind, name, value_of(object()))


@pytest.mark.parametrize(
    ("value", "hint", "said"),
    [
        ("3", Count, "n is '3'; write a whole number, 1 or more"),
        (0, Count | None, "n is 0; write a whole number, 1 or more, or None"),
        (True, Count, "n is True; write a whole number, 1 or more"),
        ("10s", Seconds, "n is '10s'; write a number of seconds, such as 90 for a minute and a half, more than 0"),
        ("x", Literal["a", "b"], "n is 'x'; write a or b"),
        ([1], Sequence[str], "n is [1]; write a list; each element is text"),
        (5, Callable[[], bool] | None, "n is 5; write a function, or None"),
        (1, datetime | str, "n is 1; write a datetime, or text"),
    ],
)
def test_the_sentence_says_what_to_write(value, hint, said):
    with pytest.raises((TypeError, ValueError)) as caught:
        check_value("n", value, hint)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        *[(1, Seconds), (math.inf, Seconds), (None, Count | None), ((), Sequence[str]), (["a"], Sequence[str])],
        *[(print, Callable[[], Any]), ({}, dict[str, Any]), (object(), Any), (None, NoneType), ("a", Literal["a"])],
    ],
)
def test_a_value_that_fits_is_taken(value, hint):
    check_value("n", value, hint)


@pytest.mark.parametrize(
    ("kind", "call", "wrong", "meant"),
    [
        (ConsumeOptions, "consume", "concurency", "concurrency"),
        (JoinOptions, "join", "max_ack_pendin", "max_ack_pending"),
        (PublisherOptions, "publisher", "windw", "window"),
        (PullOptions, "pull", "expire", "expires"),
        (WatchOptions, "watch", "heartbaet", "heartbeat"),
        (ElectionOptions, "election", "leese", "lease"),
    ],
)
def test_a_misspelt_option_is_named_with_the_method_and_the_nearest_name(kind, call, wrong, meant):
    with pytest.raises(TypeError, match=rf"^{call}\(\) has no option {wrong}; did you mean {meant}( or \w+)*\?$"):
        make_options(kind, call, {wrong: 1})


def test_an_election_without_its_name_says_how_to_write_it():
    with pytest.raises(TypeError, match=r'write @as_leader\("sweep"\)'):

        @natty.as_leader
        def sweep(term): ...

    assert election_options("as_leader", "sweeper", {"lease": 2.0}).lease == 2.0


def test_a_grace_is_at_most_a_fifth_of_the_lease():
    with pytest.raises(ValueError, match=r"a grace of 5 s is more than a fifth of the lease, 0\.2 s"):
        natty.as_leader("sweeper", lease=1.0, grace=5)
    assert ElectionOptions(name="a", lease=1.0, grace=0.2).grace == 0.2


def test_the_bucket_of_an_election_is_checked_at_decoration():
    with pytest.raises(natty.BadKeyError, match="bucket 'x y': ' ' at character 2 is not allowed"):
        natty.as_leader("sweeper", bucket="x y")

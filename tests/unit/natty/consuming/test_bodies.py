import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from natty.consuming.handler import BodyError, decoder


class Order(msgspec.Struct):
    id: int
    tags: list[str] = []


@dataclass
class Line:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Typed(TypedDict):
    id: int


@pytest.mark.parametrize(
    ("kind", "payload", "body"),
    [
        (bytes, b"\xff\x00", b"\xff\x00"),
        (str, "größer".encode(), "größer"),
        (dict, b'{"id": 7}', {"id": 7}),
        (list, b"[1, 2]", [1, 2]),
        (list[int], b"[1, 2]", [1, 2]),
        (int, b"7", 7),
        (Any, b'"x"', "x"),
        (Order, b'{"id": 7, "tags": ["a"]}', Order(7, ["a"])),
        (Line, b'{"id": 7}', Line(7)),
        (Typed, b'{"id": 7}', {"id": 7}),
        (Order | None, b"null", None),
        (Model, b'{"id": "7"}', Model(id=7)),
    ],
)
def test_a_payload_becomes_the_body_of_the_type(kind, payload, body):
    assert decoder(kind)(payload) == body


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (str, b"\xff", "not a valid str: 'utf-8' codec"),
        (dict, b"no json", "not a valid dict: JSON is malformed"),
        (dict, b"[]", "not a valid dict: Expected `object`, got `array`"),
        (Order, b'{"id": "x"}', r"not a valid Order: Expected `int`, got `str` - at `\$.id`"),
        (Order, b"", "not a valid Order: Input data was truncated"),
        (Line, b"{}", "not a valid Line: Object missing required field `id`"),
        (Model, b'{"id": "x"}', "not a valid Model: 1 validation error for Model"),
        (Model, b"{", "not a valid Model: 1 validation error for Model"),
    ],
)
def test_a_payload_that_does_not_fit_is_named_with_what_does_not(kind, payload, words):
    with pytest.raises(BodyError, match=words):
        decoder(kind)(payload)


def test_a_type_that_nothing_can_be_made_into_is_refused_at_once():
    class Opaque:
        pass

    with pytest.raises(TypeError, match=r"can't take Opaque: take Message, bytes, str"):
        decoder(Opaque)


@dataclass
class Wave:
    name: str
    amplitude: complex


@dataclass
class Sea:
    waves: list[Wave]
    next: "Sea | None" = None


@dataclass
class Lost:
    other: "NoSuchType"  # noqa: F821


@pytest.mark.parametrize("kind", [Wave, Sea, list[Wave], dict[str, Wave], Wave | None])
def test_a_type_that_holds_one_without_json_is_refused_before_the_first_body(kind):
    with pytest.raises(TypeError, match=r"a handler can't take .*, which holds complex: take Message"):
        decoder(kind)


def test_a_type_that_names_an_unknown_one_is_refused():
    with pytest.raises(TypeError, match="a handler can't take Lost: name 'NoSuchType' is not defined"):
        decoder(Lost)


def test_pydantic_is_never_imported():
    code = "import sys, natty.consuming.handler; natty.consuming.handler.decoder(dict)(b'{}'); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "natty.consuming.handler" in ran.stdout.split()
    assert not {name for name in ran.stdout.split() if name.startswith("pydantic")}


def test_a_fault_of_the_decoder_itself_is_no_unfit_body():
    class Broken(pydantic.BaseModel):
        id: int

        @pydantic.field_validator("id")
        @classmethod
        def look_up(cls, value):
            raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        decoder(Broken)(json.dumps({"id": 1}).encode())

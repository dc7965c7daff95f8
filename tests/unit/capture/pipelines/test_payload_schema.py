"""Spark's type of a payload, from Python's."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from capture.errors import ConfigError
from capture.pipelines.payload_schema import make_ddl


class Kind(enum.StrEnum):
    NEW = "new"
    OLD = "old"


@dataclasses.dataclass
class Line:
    article: str
    count: int


class Order(msgspec.Struct, rename="camel"):
    order_id: int
    total: decimal.Decimal
    at: datetime.datetime
    day: datetime.date
    lines: list[Line]
    tags: dict[str, float]
    kind: Kind
    state: Literal["a", "b"]
    note: str | None = None
    weight: int | float = 0
    data: bytes = b""
    id: uuid.UUID | None = None
    more: Any = None


class Typed(TypedDict):
    country: str
    is_paid: bool


class Model(pydantic.BaseModel):
    country: str
    total: float = pydantic.Field(alias="Total")


class Node(msgspec.Struct):
    children: "list[Node]"


def test_each_field_has_sparks_type():
    assert make_ddl(Order, "it") == (
        "`orderId` BIGINT, `total` DECIMAL(38,9), `at` TIMESTAMP, `day` DATE,"
        " `lines` ARRAY<STRUCT<`article`: STRING, `count`: BIGINT>>, `tags` MAP<STRING, DOUBLE>, `kind` STRING,"
        " `state` STRING, `note` STRING, `weight` DOUBLE, `data` BINARY, `id` STRING, `more` STRING"
    )


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        (Line, "`article` STRING, `count` BIGINT"),
        (Typed, "`country` STRING, `is_paid` BOOLEAN"),
        (Model, "`country` STRING, `Total` DOUBLE"),
    ],
)
def test_fields_may_be_declared_in_several_ways(kind, ddl):
    assert make_ddl(kind, "it") == ddl


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (int, "has no fields: name a msgspec.Struct"),
        (Node, "contains itself"),
        (msgspec.defstruct("Odd", [("a", int | str)]), "field a is of a type that a column can't have"),
        (msgspec.defstruct("Odd", [("a", dict[int, str])]), "field a is of a type that a column can't have"),
        (msgspec.defstruct("Odd", [("a", Literal["b", 1])]), "field a has values of several types"),
        (lambda text: text, "has no fields that are known without its messages"),
    ],
)
def test_a_type_without_columns_is_refused(kind, why):
    with pytest.raises(ConfigError, match=r"^it") as error:
        make_ddl(kind, "it")
    assert why in str(error.value)

"""What mypy must accept of a user's callbacks, and what it must refuse: to ignore what is no error is one itself."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.archive.manifest import Partition
from capture.decoders import json_as, keyed, per_message
from capture.ingest.block import OpenBlocks
from capture.ingest.hooks import Completion, Hook
from capture.ingest.layout import guard
from capture.ingest.pipeline import capture
from capture.ingest.record import Decoder, Record
from capture.partitioners import per_record
from natty.wire.message import Batch, Message


class Order(msgspec.Struct):
    total: int


class Invoice(msgspec.Struct):
    number: str


@dataclass(frozen=True)
class Region:
    region: str
    level: int


def order(message: Message) -> Order:
    return Order(len(message.data))


def order_with_key(message: Message) -> tuple[Order, Region]:
    return order(message), Region("eu", 1)


def order_with_a_list(message: Message) -> tuple[Order, list[str]]:
    return order(message), []


def no_message(text: str) -> Order:
    return Order(len(text))


def of_order(record: Record[Order]) -> Region:
    return Region("eu", record.value.total)


def of_invoice(record: Record[Invoice]) -> str:
    return record.value.number


def folder(partition: Partition) -> str:
    return f"{partition.folder}/{partition.dated}"


def told(completion: Completion) -> None:
    print(completion.path, completion.duration)


async def told_later(completion: Completion) -> bool:
    return completion.error is None


def a_list(record: Record[Order]) -> list[str]:
    return []


async def accepted(source: AsyncIterable[Batch], commit: Any) -> None:
    decode: Decoder[Order] = per_message(order)
    with_key: Decoder[Order] = keyed(order_with_key)
    for one in (decode, with_key, json_as(Order)):
        await capture(source, one, per_record(of_order), OpenBlocks(), commit)
    guard(folder)
    Hook(told), Hook(told_later)


async def refused(source: AsyncIterable[Batch], commit: Any) -> None:
    per_message(no_message)  # type: ignore[arg-type]  # a decoder takes a message
    keyed(order_with_a_list)  # type: ignore[arg-type]  # a key is hashable
    per_record(a_list)  # type: ignore[arg-type]
    guard(told)  # type: ignore[arg-type]  # a layout returns a folder
    Hook(folder)  # type: ignore[arg-type]  # a hook takes a completion
    wrong: Decoder[Invoice] = per_message(order)  # type: ignore[arg-type]  # it returns orders
    of_order(wrong(Batch([]))[0])  # type: ignore[arg-type]  # and these are invoices
    await capture(  # type: ignore[misc]
        source,
        json_as(Order),
        per_record(of_invoice),  # the decoder's values are orders
        OpenBlocks(),
        commit,
    )

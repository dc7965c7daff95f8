"""Which streams, from where on, which of it: what is decided without a server."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capture.archive.scope import Asked, find_out_of_scope, read_records, write_record
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.config.settings import CaptureConfig
from capture.config.streams import each, only
from capture.errors import ConfigError
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.durable import delivery
from capture.ingest.record import Records, origin_of
from capture.node.metrics import NodeCollector
from capture.node.nodes import Several
from capture.stores import MemoryStore


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CAPTURE_")]:
        monkeypatch.delenv(name)


def configured(tmp_path: Path, text: str, **flags: Any) -> CaptureConfig:
    file = tmp_path / "capture.toml"
    file.write_text(text)
    return load(file, flags)


# --- several streams -------------------------------------------------------------------------------------------------


def test_each_stream_has_what_is_said_of_it_and_the_rest_as_all(tmp_path: Path) -> None:
    text = """
        store = "s3://lake/archives/?region=eu"
        durable = "d"
        [streams.ORDERS]
        [streams.PAYMENTS]
        durable = "p"
        filter_subjects = ["payments.eu"]
        start = 7
        ack = "all"
    """
    orders, payments = each(configured(tmp_path, text))
    assert (orders.stream, orders.name, orders.durable) == ("ORDERS", "ORDERS", "d")
    assert (orders.store, payments.store) == (
        "s3://lake/archives/ORDERS?region=eu",
        "s3://lake/archives/PAYMENTS?region=eu",
    )
    assert (payments.name, payments.durable, payments.start, payments.ack) == ("PAYMENTS", "p", 7, "all")
    assert (orders.filter_subjects, payments.filter_subjects) == ([], ["payments.eu"])
    assert (orders.streams, payments.streams) == ([], [])


def test_archives_of_several_streams_never_share_a_name(tmp_path: Path) -> None:
    text = 'store = "/lake"\narchive = "north"\nstreams = ["A", "B"]'
    assert [(one.name, one.store) for one in each(configured(tmp_path, text))] == [
        ("north-A", "/lake/A"),
        ("north-B", "/lake/B"),
    ]


def test_one_of_several_streams_may_be_named(tmp_path: Path) -> None:
    text = 'store = "/lake"\nstreams = ["A", "B"]'
    assert only(configured(tmp_path, text, stream="B")).store == "/lake/B"
    with pytest.raises(ConfigError, match="there are 2 streams, A, B: name one with --stream"):
        only(configured(tmp_path, text))
    with pytest.raises(ConfigError, match=r"stream 'C' is not one of streams: A, B \(stream: flag --stream"):
        configured(tmp_path, text, stream="C")


def test_one_stream_lies_in_the_store_itself() -> None:
    config = CaptureConfig(stream="A", store="/lake")
    assert each(config) == [config]


def test_at_a_reload_each_stream_takes_up_what_has_changed_for_it(tmp_path: Path) -> None:
    text = f'store = "{tmp_path}"\n[streams.A]\n[streams.B]\n'
    told: list[str] = []
    nodes = Several(
        configured(tmp_path, text),
        load=lambda: configured(tmp_path, f"{text}[limits]\nmax_age = 7.0\n"),
        on_reload=lambda config: told.append(config.stream),
    )
    nodes.reload()
    assert [(node.config.stream, node.config.limits.max_age) for node in nodes.nodes] == [("A", 7.0), ("B", 7.0)]
    assert told == ["A", "B"]


def test_the_figures_of_several_streams_are_told_apart_by_the_stream(tmp_path: Path) -> None:
    nodes = Several(configured(tmp_path, f'store = "{tmp_path}"\nstreams = ["A", "B"]'))
    for count, node in enumerate(nodes.nodes, start=1):
        node.stored["messages"] += count
    [messages] = [one for one in NodeCollector(nodes).collect() if one.name == "capture_messages"]
    assert {sample.labels["stream"]: sample.value for sample in messages.samples} == {"A": 1.0, "B": 2.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[streams.A]\nstrat = 3", r"there is no setting `strat`"),
        ('[streams.A]\nack = "none"', r"`streams\[\.\.\.\]\.ack` must be one of explicit, all"),
        ('streams = ["A"]\nstart = "soon"', r"start must be .*, not 'soon' \(start: file .*, line 3\)"),
    ],
)
def test_what_is_wrong_with_a_stream_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(tmp_path, f'store = "/lake"\n{text}')


# --- where a durable begins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("all", {"deliver_policy": "all"}),
        ("new", {"deliver_policy": "new"}),
        (41, {"deliver_policy": "by_start_sequence", "opt_start_seq": 41}),
        ("41", {"deliver_policy": "by_start_sequence", "opt_start_seq": 41}),
        ("2026-11-21T07:30:00+01:00", {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T06:30:00Z"}),
        (
            "2026-11-21T06:30:00.123456789+00:00",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T06:30:00.123456789Z"},
        ),
        ("2026-11-21T06:30:00.120Z", {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T06:30:00.12Z"}),
    ],
)
def test_a_start_is_told_to_the_server_as_it_writes_it_itself(start: int | str, wanted: dict[str, Any]) -> None:
    assert delivery(start) == wanted


@pytest.mark.parametrize(
    "start",
    ["", "soon", 0, -1, "1.5", "2026-11-21T06:30:00", "2026-13-01T00:00:00Z", "2026-11-21T06:30:00.1234567891Z"],
)
def test_what_is_no_start_is_refused(start: int | str) -> None:
    with pytest.raises(ConfigError, match=r'start must be "all", "new", a sequence from 1 on, or a time with its zone'):
        delivery(start)


# --- what was asked for ----------------------------------------------------------------------------------------------


class Reader:
    """A stream that keeps nobody from looking at single messages: their subjects, by sequence."""

    def __init__(self, subjects: dict[int, str]) -> None:
        self.subjects = subjects
        self.jetstream = self

    async def request(self, subject: str) -> dict[str, Any]:
        return {"config": {"retention": "workqueue"}}

    async def read(self, stream: str, *, sequence: int) -> SimpleNamespace | None:
        subject = self.subjects.get(sequence)
        return None if subject is None else SimpleNamespace(sequence=sequence, subject=subject)


def asked(created: str, start: int, *filters: str) -> Asked:
    return Asked(stream="S", durable="d", created=created, start=start, filter_subjects=list(filters))


async def unwanted(records: list[Asked], missing: range, subjects: dict[int, str] | None = None) -> list[int]:
    store = MemoryStore()
    for one in records:
        await write_record(store, one)
    reader: Any = Reader(subjects or {})
    return list(await find_out_of_scope(reader, store, "S", Sequences.from_iterable(missing)))


async def test_what_lies_before_every_start_was_never_asked_for() -> None:
    assert await unwanted([asked("1", 5)], range(1, 9)) == [1, 2, 3, 4]
    assert await unwanted([asked("1", 5), asked("2", 3)], range(1, 9)) == [1, 2]
    assert await unwanted([], range(1, 9)) == []


async def test_other_subjects_were_never_asked_for_but_what_can_not_be_looked_at_may_be_missing() -> None:
    subjects = {1: "a", 2: "b", 3: "a", 4: "b", 5: "c"}
    assert await unwanted([asked("1", 1, "a")], range(1, 8), subjects) == [2, 4, 5]
    assert await unwanted([asked("1", 1, "a"), asked("2", 3, "b")], range(1, 8), subjects) == [2, 5]
    assert await unwanted([asked("1", 1, "a"), asked("2", 4)], range(1, 8), subjects) == [2]


async def test_what_was_asked_of_a_durable_is_written_once() -> None:
    store = MemoryStore()
    await write_record(store, asked("2026-11-21T06:00:00.5Z", 5))
    await write_record(store, asked("2026-11-21T06:00:00.5Z", 9))
    assert await read_records(store, "S") == [asked("2026-11-21T06:00:00.5Z", 5)]
    assert [one.path for one in await store.list("_asked/")] == ["_asked/S/d-20261121T0600005Z.json"]


# --- origins and acks in order ---------------------------------------------------------------------------------------


def test_the_header_of_a_sourced_message_says_where_it_comes_from() -> None:
    assert origin_of(b"NATS/1.0\r\nNats-Stream-Source: ORIGIN 42 > > orders.eu\r\n\r\n") == ("ORIGIN", 42)
    for block in (b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nNats-Stream-Source: by hand\r\n\r\n"):
        assert origin_of(block) is None


def test_a_block_that_others_overtake_is_sealed_where_it_would_hold_back_their_acks() -> None:
    def some(first: int, count: int) -> Records[Any]:
        numbers = list(range(first, first + count))
        columns: list[list[Any]] = [numbers, numbers, [b"s"] * count, [b""] * count, [b""] * count, [1] * count]
        return Records("S", *columns, [b"r"] * count, [None] * count)

    blocks = OpenBlocks(Limits(max_behind=100))
    assert blocks.add([("rare", 0, some(1, 1))], now=0.0) == []
    assert blocks.add([("often", 0, some(2, 99))], now=0.0) == []
    [sealed] = blocks.add([("often", 0, some(101, 1))], now=0.0)
    assert (sealed.key, sealed.reason, sealed.count) == ("rare", "pending", 1)
    assert blocks.add([("often", 0, some(102, 50))], now=0.0)[0].key == "often"

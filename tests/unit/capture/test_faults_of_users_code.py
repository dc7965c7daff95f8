"""What users' functions raise, even a cancellation, ends neither the task nor the process that calls them."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec
import pytest
from patient import PATIENCE
from sealed import block, csv_rows
from typer.main import get_command

from capture.archive.manifest import Partition
from capture.cli.app import make_app
from capture.decoders import decoder, per_message
from capture.decoders.contract import by_batch, guard
from capture.errors import CaptureError, ConfigError, StoreError
from capture.formats import writer
from capture.formats.own_format import OwnFormat
from capture.ingest import layout
from capture.ingest.hooks import Completion, Hook
from capture.ingest.record import Records
from capture.partitioners.contract import guard as guard_partitioner
from capture.partitioners.contract import per_record
from capture.stores import MemoryStore, OwnStore, open_store
from natty import NattyError
from natty.cli.run import run
from natty.wire.ack import ack_subject
from natty.wire.message import Batch

BATCH = Batch([(b"s", ack_subject("S", "c", 1, 1), b"", b"{}")])


@pytest.fixture(params=[asyncio.CancelledError, SystemExit, GeneratorExit])
def fault(request: pytest.FixtureRequest) -> type[BaseException]:
    """What a function of the user raises."""
    found: type[BaseException] = request.param
    return found


@pytest.fixture
def fail(fault: type[BaseException]) -> Any:
    """The function that raises it."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise fault

    return fail


def test_of_a_decoder_it_is_the_error_of_that_message(fail: Any, fault: type[BaseException]) -> None:
    assert per_message(fail)(BATCH).errors == {0: f"{fault.__name__}: "}
    assert guard(by_batch(fail))(BATCH).errors == {0: f"{fault.__name__}: "}


def test_of_a_type_of_json_it_is_the_error_of_that_message(
    fail: Any, fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Order(msgspec.Struct):
        def __post_init__(self) -> None:
            fail()

    monkeypatch.setattr("capture.testing.Order", Order, raising=False)
    assert decoder("capture.testing:Order")(BATCH).errors == {0: f"{fault.__name__}: "}


@pytest.mark.parametrize("guarded", [per_record, guard_partitioner])
def test_of_a_partitioner_it_is_the_error_of_that_message(fail: Any, fault: type[BaseException], guarded: Any) -> None:
    records: Records[Any] = Records.of(BATCH)
    assert len(guarded(fail)(records)) == 1
    assert records.errors == {0: f"no key: {fault.__name__}: "}


def test_of_a_function_for_rows_it_is_the_error_of_that_message(
    fail: Any, fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.testing.fail", fail, raising=False)
    wanted = writer("csv", decode=decoder("json"), flatten="capture.testing:fail")
    [row] = csv_rows(wanted.write(block((b"s", b"", b"{}"))))
    assert (row["payload"], row["error"]) == ("{}", f"flatten: {fault.__name__}: ")


def test_of_a_layout_it_is_logged_and_the_block_has_a_place(
    fail: Any, fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    partition = Partition("S", "k", 0, 60)
    assert layout.guard(fail)(partition) == partition.hive()
    assert fault.__name__ in caplog.text


def test_of_a_writer_it_is_an_error_of_the_store_so_that_the_messages_are_handed_back(
    fail: Any, fault: type[BaseException]
) -> None:
    class Mine:
        format = "mine"
        write = fail

    with pytest.raises(StoreError, match=f"the writer Mine failed on 1 message: {fault.__name__}"):
        OwnFormat.of(Mine()).write(block((b"s", b"", b"{}")))


@pytest.mark.parametrize("fault", [asyncio.CancelledError, SystemExit], indirect=True)
async def test_of_a_store_it_is_a_store_error(fault: type[BaseException]) -> None:
    class Mine(MemoryStore):
        async def get(self, path: str) -> bytes:
            raise fault

    with pytest.raises(StoreError, match=f"^get a/b failed in the store memory://mine: {fault.__name__}$"):
        await OwnStore(Mine("mine")).get("a/b")


async def test_the_cancellation_of_the_task_that_waits_for_a_store_ends_that_task() -> None:
    waits = asyncio.Event()

    class Slow(MemoryStore):
        async def get(self, path: str) -> bytes:
            waits.set()
            await asyncio.Event().wait()
            return b""

    reading = asyncio.create_task(OwnStore(Slow("slow")).get("a"))
    await waits.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reading.cancelled()


async def test_of_a_hook_it_is_logged_and_the_hook_is_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults: list[type[BaseException]] = [asyncio.CancelledError, SystemExit, StopIteration, ValueError]
    calls = []

    def plain(_: Completion) -> None:
        calls.append("plain")
        raise faults[len(calls) - 1]

    async def later(_: Completion) -> None:
        calls.append("later")
        raise {StopIteration: KeyError}.get(faults[len(calls) - 5], faults[len(calls) - 5])

    one = Completion(stream="S", key="k", path="", first=1, last=1, count=1, bytes=0, duration=0.0)
    with caplog.at_level(logging.ERROR):
        for function in (plain, later):
            async with asyncio.timeout(PATIENCE), Hook(function) as telling:
                for _ in faults:
                    telling(one)
    assert calls == ["plain"] * len(faults) + ["later"] * len(faults)
    assert caplog.text.count("the hook <function") == len(calls)


def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails; return what it complains."""
    monkeypatch.setattr(sys, "argv", ["capture", *arguments])
    assert run(get_command(make_app()), "capture", (CaptureError, NattyError)) == 1
    return capsys.readouterr().err.replace("\n", " ")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that this process can import."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_that_ends_the_process_when_it_is_imported_is_refused_in_one_sentence(
    modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "quits.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigError, match="the store 'quits:Store' can't be loaded: SystemExit: 3"):
        open_store("quits:Store")
    assert "can't be loaded: SystemExit: 3" in complaint(monkeypatch, capsys, "ls", "--store", "quits:Store")


def test_a_store_that_was_cancelled_inside_is_one_sentence_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(MemoryStore):
        async def get(self, *_: Any) -> NoReturn:
            raise asyncio.CancelledError

        list = get  # type: ignore[assignment]

    module = ModuleType("closed")
    module.Closed = lambda: Closed("closed")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "closed", module)
    said = complaint(monkeypatch, capsys, "ls", "--store", "closed:Closed")
    assert "failed in the store closed:Closed: CancelledError" in said
    assert "Traceback" not in said

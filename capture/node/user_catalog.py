"""The catalog of the user, `[table.catalog]`: what its entries are, and the task that keeps them at the table."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from capture.archive.iceberg_state import CatalogState, Exposable, Iceberg, archive_location, folder
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, CatalogAwayError, CatalogUnfitError, ForeignEntryError
from capture.stores import Store
from natty import NattyError

if TYPE_CHECKING:
    from capture.iceberg.foreign import Address, Entries, Wanted

    Work = Callable[[Address, Entries, Wanted], "Result"]

Result = TypeVar("Result")

REGISTERS = "catalog"
"""The name of the task in messages about failures."""
RETRY, LONGEST_RETRY = 5.0, 300.0  # seconds between two attempts to reach a catalog; they double
LOOK = 300.0  # seconds between two looks at entries that are right: another program may remove one
MARGIN = 20.0  # seconds for a second and third request

log = logging.getLogger("capture.catalogs")


@dataclass
class UserCatalog:
    """The catalog of `[table.catalog]`: sets and reads its entries, one call at a time.

    pyiceberg's calls block, some for ever: each runs in a thread that does not hold the process, within a time limit.
    """

    store: Store
    config: CaptureConfig
    _entries: Entries | None = field(default=None, repr=False)
    _busy: threading.Thread | None = field(default=None, repr=False)
    _closed: bool = False
    _one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @property
    def address(self) -> Address:
        """The catalog's address. Raises ConfigError."""
        from capture.iceberg.foreign import Address

        said = self.config.table.catalog
        ca = str(Path(said.ca).expanduser()) if said.ca else ""
        return Address(said.type, said.name, said.read_properties(), ca, said.timeout)

    def name(self, stream: str) -> str:
        """Return the name of a stream's entry, with dots."""
        return ".".join(self.config.table.catalog.identify(self.config.name, stream))

    async def reach(self, table: Exposable, stream: str) -> str:
        """Return a sentence on what the catalog has for a stream, whose table may not exist yet.

        Raises ForeignEntryError if the entry is not this archive's; other CatalogErrors, ConfigError.
        """
        wanted, found = await self._find(table, stream)
        if found is None:
            return f"{self.address} answers; {wanted.name} is not registered yet"
        from capture.iceberg.foreign import check_ours

        check_ours(found, wanted)
        return f"{self.address} answers; {wanted.name} names {found}"

    async def inspect(self, table: Exposable, stream: str) -> tuple[str, bool]:
        """Return a sentence about the entry, and whether it names the table. Raises CatalogError, ConfigError."""
        wanted, found = await self._find(table, stream)
        from capture.iceberg.foreign import check_ours

        if found is None:
            return f"{wanted.name} is not registered in the catalog", False
        if found == wanted.location:
            number = table.iceberg[stream].number
            return f"{wanted.name} in the catalog is current: it shows table {number}", True
        try:
            check_ours(found, wanted)
        except ForeignEntryError as error:
            return str(error), False
        return f"{wanted.name} in the catalog shows an earlier table, {found}", False

    async def set(self, table: Exposable, stream: str, *, take_over: bool = False) -> str:
        """Let the entry name the stream's table. Return what was done: see `foreign_catalog.set_entry`.

        Raises CatalogError, ConfigError, StoreError.
        """
        wanted = await self._want(table, stream)
        from capture.iceberg.foreign_catalog import set_entry

        if self.config.table.catalog.type == "glue":  # its entries have the columns
            wanted = replace(wanted, metadata=await self.store.get(table.iceberg[stream].metadata))
        return await self._run(partial(set_entry, take_over=take_over), wanted)

    async def remove(self, table: Exposable, stream: str) -> bool:
        """Remove the entry; return False if there is none. Raises CatalogError, ConfigError."""
        wanted = await self._want(table, stream)
        from capture.iceberg.foreign_catalog import remove_entry

        return await self._run(remove_entry, wanted)

    def close(self) -> None:
        """Close the connections; those of a call that is under way when it ends."""
        self._closed = True
        if not (self._busy and self._busy.is_alive()):
            self._disconnect()

    async def _find(self, table: Exposable, stream: str) -> tuple[Wanted, str | None]:
        """Return the entry that is wanted, and the location that it names now; None if there is none."""
        wanted = await self._want(table, stream)
        from capture.iceberg.foreign_catalog import find_entry

        return wanted, await self._run(find_entry, wanted)

    async def _want(self, table: Exposable, stream: str) -> Wanted:
        """Return the entry for a table, without a location if that has none. Loads pyiceberg first."""
        await asyncio.to_thread(_load)
        from capture.iceberg.foreign import Wanted

        identifier = self.config.table.catalog.identify(self.config.name, stream)
        if (shown := table.iceberg.get(stream)) is None:
            base = archive_location(self.store, self.config.table.location)
            return Wanted(identifier, "", f"{base}/{folder(stream)}")
        former = [one.path for one in table.retired if one.path.endswith(".metadata.json")]
        mine = frozenset(path for path in former if path.startswith(folder(stream)))
        return Wanted(identifier, location_of(shown, stream), shown.location, mine)

    async def _run(self, work: Work[Result], wanted: Wanted) -> Result:
        """Run a call in a thread. Raises CatalogAwayError if it takes too long, or an earlier one still does."""
        address, limit = self.address, 3 * self.config.table.catalog.timeout + MARGIN
        async with self._one_by_one:
            if self._busy and self._busy.is_alive():
                raise CatalogAwayError(f"{address} has not answered an earlier request yet")
            self._closed = False
            answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(asyncio.Future.exception)  # read it also if the waiting task was cancelled
            self._busy = threading.Thread(
                target=self._call, args=(answer, address, work, wanted), name="capture catalog", daemon=True
            )
            self._busy.start()
            try:
                async with asyncio.timeout(limit):
                    await asyncio.wait([answer])
            except TimeoutError:
                raise CatalogAwayError(f"{address} has not answered within {limit:g} s") from None
            self._busy = None
            return answer.result()

    def _call(self, answer: asyncio.Future[Result], address: Address, work: Work[Result], wanted: Wanted) -> None:
        """Do the work, and settle `answer` on its loop."""
        settle: Callable[[], None]
        try:
            settle = partial(_settle, answer, self._work(address, work, wanted))
        except Exception as error:
            settle = partial(_fail, answer, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            answer.get_loop().call_soon_threadsafe(settle)

    def _work(self, address: Address, work: Work[Result], wanted: Wanted) -> Result:
        from capture.iceberg.foreign_catalog import open_catalog

        try:
            if self._entries is None:
                self._entries = open_catalog(address)
            return work(address, self._entries, wanted)
        except CaptureError:
            self._disconnect()  # a password or a server may have changed
            raise
        finally:
            if self._closed:
                self._disconnect()

    def _disconnect(self) -> None:
        if self._entries is not None:
            self._entries.close()
            self._entries = None


class CatalogKeeper:
    """Keeps the catalog's entries at the last announced table, in a task of its own: no commit waits for a catalog.

    A failure is put into `failing`, logged once, and the entries are set again after a growing pause, and with the next
    table. It looks at right entries again every `look` seconds. `states` are the entries as this node knows them.
    """

    def __init__(
        self,
        catalog: UserCatalog,
        failing: MutableMapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
        retry: float = RETRY,
        look: float = LOOK,
    ) -> None:
        self.states: dict[str, CatalogState] = {}
        self._catalog = catalog
        self._failing = failing
        self._clock = clock
        self._retry = retry
        self._look = look
        self._table: Exposable | None = None
        self._announced = asyncio.Event()
        self._unfit: dict[str, CatalogUnfitError] = {}

    def __repr__(self) -> str:
        return f"CatalogKeeper({list(self.states.values())})"

    def announce(self, table: Exposable) -> None:
        """Let the entries name this table soon. Does not wait."""
        self._table = table
        self._announced.set()

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Keep the entries while the body runs."""
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._catalog.close()
            self._failing.pop(REGISTERS, None)
            self.states.clear()

    async def set_all(self) -> bool:
        """Set the entries of the last announced table once. Return whether all name it."""
        table, troubles = self._table, list[str]()
        for stream in table.iceberg if table else ():
            assert table is not None
            try:
                done = await self._set(table, stream)
            except (CaptureError, NattyError) as error:
                troubles.append(str(error))
                before = self.states.get(stream) or CatalogState(stream=stream, entry=self._catalog.name(stream))
                self.states[stream] = msgspec.structs.replace(before, trouble=str(error))
                continue
            number = table.iceberg[stream].number
            known = self.states.get(stream)
            since = known.since if known and known.number == number else self._clock()
            self.states[stream] = CatalogState(
                stream=stream, entry=self._catalog.name(stream), number=number, since=since
            )
            if done == "registered":
                text = "%s is registered in the catalog, and shows table %d"
                log.info(text, self._catalog.name(stream), number, extra={"action": "registered"})
        self._report(troubles)
        return not troubles

    async def _set(self, table: Exposable, stream: str) -> str:
        """Set an entry. A catalog that can't replace entries is reported until it can."""
        try:
            done = await self._catalog.set(table, stream)
        except CatalogUnfitError as error:
            self._unfit[stream] = error
            raise
        if done == "current" and stream in self._unfit:
            raise self._unfit[stream]
        self._unfit.pop(stream, None)
        return done

    def _report(self, troubles: list[str]) -> None:
        if not troubles:
            if self._failing.pop(REGISTERS, None):
                # at the default level, too: the failure was logged
                log.warning("the catalog shows the table again", extra={"action": "registered"})
            return
        failed = f"the catalog does not show the table: {'; '.join(dict.fromkeys(troubles))}"
        if self._failing.get(REGISTERS) != failed:  # log it once while it lasts; capture status shows it
            log.error("%s", failed, extra={"action": "catalog_failed"})
        self._failing[REGISTERS] = failed

    async def _keep(self) -> None:
        retry = self._retry
        pause: float | None = None  # for the first table
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._announced.wait()
            self._announced.clear()
            try:
                fine = await self.set_all()
            except Exception:
                log.exception("the catalog's entries could not be set", extra={"action": "catalog_failed"})
                fine = False
            pause, retry = (self._look, self._retry) if fine else (retry, min(2 * retry, LONGEST_RETRY))


def location_of(shown: Iceberg, stream: str) -> str:
    """Return the location of the metadata file of a stream's table."""
    return shown.location.removesuffix(folder(stream)) + shown.metadata


def _load() -> None:
    """Import pyiceberg's catalogs, which takes a second: in a thread."""
    import capture.iceberg.foreign_catalog  # noqa: F401


def _settle(answer: asyncio.Future[Result], result: Result) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Result], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

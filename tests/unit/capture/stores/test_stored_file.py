"""Reading an object as a file, by a thread that asks an event loop for its bytes."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from patient import PATIENCE

from capture.stores import MemoryStore, stored_file
from capture.stores.stored_file import StoredFile, run_on_loop


async def test_a_file_is_read_by_a_thread():
    store = MemoryStore()
    await store.put("a", b"0123456789")
    file = StoredFile(store, "a", 10)
    file.seek(4)
    assert await asyncio.to_thread(file.read) == b"456789"


async def test_an_error_of_the_coroutine_is_raised_a_timeout_too(monkeypatch):
    async def ask():
        await asyncio.sleep(0.05)
        raise TimeoutError("the store's own")

    monkeypatch.setattr(stored_file, "LOOK_EVERY", 0.01)
    with pytest.raises(TimeoutError, match="the store's own"):
        await asyncio.to_thread(run_on_loop, ask(), asyncio.get_running_loop())


def test_a_thread_does_not_wait_for_a_loop_that_was_closed(monkeypatch):
    monkeypatch.setattr(stored_file, "LOOK_EVERY", 0.01)
    loop, asked = asyncio.new_event_loop(), threading.Event()

    async def ask():
        asked.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(run_on_loop, ask(), loop)
        while not asked.is_set():
            loop.run_until_complete(asyncio.sleep(0.001))
        (task,) = asyncio.all_tasks(loop)
        task._log_destroy_pending = False
        loop.close()
        with pytest.raises(RuntimeError, match="the event loop was closed during a read"):
            reading.result(PATIENCE)
    task.get_coro().close()

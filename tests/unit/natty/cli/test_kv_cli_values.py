import pytest
import typer

from natty.cli.ask import seconds


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("5", 5.0), ("0.5", 0.5), ("500ms", 0.5), ("1h30m", 5400.0), ("7d", 604800.0), ("1.5h", 5400.0)],
)
def test_a_duration_is_read_as_the_nats_tool_reads_it(text, wanted):
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "0s", "soon", "5 s", "-5s", "1h30", "5x", "."])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        seconds(text)

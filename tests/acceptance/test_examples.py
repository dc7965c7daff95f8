"""Each program of examples/ runs as a process of its own, with mutual TLS to a real server, and does what it says."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHIN = 60.0  # seconds
SAYS = {
    "beside_faststream": [
        *(f"book {number} ordered in EXAMPLE_SHIPMENTS" for number in range(5)),
        *(f"book {number} shipped" for number in range(5)),
        "stopped",
    ],
    "service": ["handled example.orders.0 1", "handled example.orders.19 20", "counts 20", "stopped"],
}


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name, shell):
    done = shell.finish(
        shell.execute([sys.executable, "-u", EXAMPLES / f"{name}.py"], PYTHONPATH=str(EXAMPLES.parent)), within=WITHIN
    )
    assert done.status == 0, done.err
    assert "Traceback" not in done.err
    assert [text for text in SAYS[name] if text not in done.out] == []

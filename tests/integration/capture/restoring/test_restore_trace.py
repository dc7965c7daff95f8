"""How many files of capture one opens to follow a message from the archive back into a stream."""

import pytest
from entering import entered
from restoring import Capturing, planned

import capture as package
from capture.restoring.rebuild import restore_exactly
from capture.restoring.replay import rebuild_published

CHOOSING = {"reading/inventory", "reading/supply", "archive/index/page", "archive/index/tree", "archive/trust"}
CHOOSING |= {"archive/manifest", "archive/table", "archive/stored_formats"}
"""Files that choose the objects, page by page of the index. No message is in them."""


@pytest.mark.parametrize(("carry_out", "most"), [(restore_exactly, 18), (rebuild_published, 18)])
async def test_a_restored_message_is_followed_through_few_files(natty, natty_name, tmp_path, carry_out, most):
    """The plan is made before, but for the order of the objects; the first restore is warm-up."""
    captured = Capturing(natty, natty_name("orders"), tmp_path)
    await natty.ensure_stream(captured.stream, subjects=[f"{captured.stream}.*"])
    await natty.publish(f"{captured.stream}.eu", b'{"n": 1}', headers={"Colour": "red"})
    await captured.capture()
    for name in ("warm", "traced"):
        plan, keys = await planned(natty, captured, name=natty_name(name), detached=True), captured.config.keys()
        with entered(package) as files:
            done = await carry_out(natty, plan, captured.store, keys)
        assert (done.messages, done.kept) == (1, 1)
    known = ("restoring/pick", "reading/merge", "stores/file", "formats/batches", "archive/sequences")
    assert {f"capture/{one}.py" for one in known} < files
    files -= {f"capture/{one}.py" for one in CHOOSING}
    assert len(files) <= most, sorted(files)

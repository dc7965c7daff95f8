"""Folders of Spark's files: one goes with its owner, or with the next who starts, and never before."""

import time

import pytest

from capture.spark.scratch import YOUNG, Scratch, remove_orphans


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_when_its_owner_has_died_and_not_while_it_lives(temporary):
    dead, living = Scratch(), Scratch()
    (living.path / "rows").touch()
    dead._lock.close()  # as the system does when it ends the owner
    remove_orphans(temporary, now=time.time() + 2 * YOUNG)
    assert [*temporary.iterdir()] == [living.path]
    assert (living.path / "rows").exists()
    living.remove()
    assert [*temporary.iterdir()] == []


def test_one_that_is_just_being_made_has_no_lock_yet_and_stays(temporary):
    begun = Scratch()
    begun._lock.close()
    remove_orphans(temporary, now=time.time())
    assert begun.path.exists()
    Scratch(now=time.time() + 2 * YOUNG).remove()
    assert not begun.path.exists()


def test_what_others_have_put_in_their_place_stays(temporary):
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (temporary / "capture-spark-link").symlink_to(elsewhere)
    (temporary / "capture-spark-bare").mkdir()
    remove_orphans(temporary, now=time.time() + 2 * YOUNG)
    assert (elsewhere / "lock").exists()
    assert (temporary / "capture-spark-bare").exists()

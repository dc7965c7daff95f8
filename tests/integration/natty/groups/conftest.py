import pytest
from go_groups import Go
from group_members import Notes, make


@pytest.fixture
def go(natty):
    return Go(natty)


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
async def group(natty, natty_name):
    return await make(natty, natty_name("GROUP"), members=["m1"])

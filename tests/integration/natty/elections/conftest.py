import pytest
from electing import vacated
from patient import PATIENT

from natty import Natty


@pytest.fixture
async def name(request, natty, natty_name):
    """An election in the file's BUCKET, whose last leader has left."""
    return await vacated(natty, natty_name("job"), **request.module.BUCKET)


@pytest.fixture
async def other(nats_server):
    """Another client."""
    async with Natty(**nats_server.connect_options(), **PATIENT) as client:
        yield client

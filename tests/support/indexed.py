"""Documents with an index, for tests that look at all objects of an archive."""

from capture.archive import chain
from capture.archive.index.contents import load, renew
from capture.archive.index.tree import Index


async def read_whole(store, head, kind):
    """Return a document with all its objects in its list."""
    return await load(store, await chain.read(store, head, kind))


async def commit_whole(store, pointer, previous, document):
    """Commit a document that has all its objects in its list; return the head."""
    index = Index(store, document.PAGES)
    document, pages = await renew(index, document)
    return await chain.commit(store, pointer, previous, document, pages)

"""A store that dies in the middle of its calls."""

from capture.errors import StoreError
from capture.stores import MemoryStore


class Failing(MemoryStore):
    """A store that dies at its n-th call, before or after it has run the call."""

    def __init__(self, clock, name=""):
        super().__init__(name, clock=clock)
        self.left, self.after = -1, False

    async def _call(self, done):
        self.left -= 1
        if self.left == 0 and not self.after:
            done.close()
            raise StoreError("killed")
        result = await done
        if self.left == 0:
            raise StoreError("killed")
        return result

    async def put(self, path, data, *, if_absent=True):
        return await self._call(super().put(path, data, if_absent=if_absent))

    async def get(self, path):
        return await self._call(super().get(path))

    async def list(self, prefix=""):
        return await self._call(super().list(prefix))

    async def delete(self, path):
        return await self._call(super().delete(path))

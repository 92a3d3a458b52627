"""`AsyncVolume` with snapshots, forks and restores."""

from collections.abc import Coroutine
from typing import Any, Self, Unpack
from urllib.parse import quote

import e2b
from e2b.connection_config import ApiParams

from ._http import call_async
from .models import VolumeChange, VolumeSnapshot


class AsyncVolume(e2b.AsyncVolume):
    """E2B's async volume with what Pando adds. The methods are those of `Volume`."""

    async def snapshot(self, name: str, **opts: Unpack[ApiParams]) -> VolumeSnapshot:
        """Keeps the present content under a name. Mounted volumes go on."""
        return VolumeSnapshot.from_wire(await self._call("POST", "/snapshots", {"name": name}, **opts))

    async def snapshots(self, **opts: Unpack[ApiParams]) -> list[VolumeSnapshot]:
        """All snapshots."""
        return [VolumeSnapshot.from_wire(one) for one in await self._call("GET", "/snapshots", **opts)]

    async def delete_snapshot(self, name: str, **opts: Unpack[ApiParams]) -> bool:
        """Deletes a snapshot. Forks of it stay. False if there was none."""
        try:
            await self._call("DELETE", f"/snapshots/{quote(name, safe='')}", **opts)
        except e2b.VolumeNotFoundException:
            return False
        return True

    async def fork(self, name: str, snapshot: str | None = None, **opts: Unpack[ApiParams]) -> Self:
        """Makes a volume of the same content. It shares all data, so this takes no time and no space.

        :param name: the name of the new volume
        :param snapshot: fork this snapshot instead of the present content
        """
        body = {"name": name} if snapshot is None else {"name": name, "snapshot": snapshot}
        made = await self._call("POST", "/fork", body, **opts)
        return await type(self).connect(made["volumeID"], **opts)

    async def restore(self, snapshot: str, **opts: Unpack[ApiParams]) -> str:
        """Puts the content of a snapshot in the place of the present one. Mounted volumes change under their programs.

        :return: the name of a new snapshot, which has the content that was there before
        """
        before: str = (await self._call("POST", "/restore", {"snapshot": snapshot}, **opts))["before"]
        return before

    async def changes(self, since: str, until: str | None = None, **opts: Unpack[ApiParams]) -> list[VolumeChange]:
        """How the content differs from a snapshot.

        :param since: the snapshot
        :param until: another snapshot; the present content if not given
        """
        query = f"?from={quote(since, safe='')}" + (f"&to={quote(until, safe='')}" if until is not None else "")
        return [VolumeChange.from_wire(one) for one in await self._call("GET", f"/changes{query}", **opts)]

    def _call(self, method: str, path: str, body: object = None, **opts: Unpack[ApiParams]) -> Coroutine[Any, Any, Any]:
        return call_async(method, f"/volumes/{self.volume_id}{path}", body, **self._resolve_api_params(**opts))

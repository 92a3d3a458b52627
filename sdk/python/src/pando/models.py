"""What the additions return."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self


@dataclass(frozen=True)
class Checkpoint:
    """A state of a sandbox that has a name: a snapshot, in the words of E2B."""

    checkpoint_id: str
    """The id of the snapshot. `Sandbox.create` takes it as a template."""
    names: tuple[str, ...]
    """The names by which it is found, with the slug of the team and the tag: `team/name:default`."""

    @property
    def name(self) -> str:
        """The first of its names without slug and tag, or the id if it has no name."""
        return short_name(self.names[0]) if self.names else self.checkpoint_id


def short_name(name: str) -> str:
    """`team/name:tag` without the team and the tag."""
    return name.rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True)
class FileDiff:
    """How the files below a directory differ between two sandboxes. Paths are relative to it, and sorted."""

    added: tuple[str, ...]
    """Only the second sandbox has them."""
    removed: tuple[str, ...]
    """Only the first sandbox has them."""
    modified: tuple[str, ...]
    """Both have them. Kind, mode, owner, content or the target of a link differs."""

    def __bool__(self) -> bool:
        """True if anything differs."""
        return bool(self.added or self.removed or self.modified)


@dataclass(frozen=True)
class VolumeSnapshot:
    """A kept state of a volume."""

    name: str
    """Its name, unique in the volume."""
    created_at: datetime
    """When it was taken."""

    @classmethod
    def from_wire(cls, value: dict[str, Any]) -> Self:
        """Reads what the server sends."""
        return cls(value["name"], datetime.fromisoformat(value["createdAt"]).astimezone(UTC))


@dataclass(frozen=True)
class VolumeChange:
    """How one path of a volume differs from a snapshot."""

    path: str
    """The path, from the volume's top directory: `/data/a.csv`."""
    change: str
    """`added`, `removed`, `modified`, `renamed`, or `metadata` if only owner, mode or times differ."""
    type: str
    """`file`, `directory`, `symlink` or another type."""
    renamed_from: str | None = None
    """The path in the snapshot, if it was renamed."""

    @classmethod
    def from_wire(cls, value: dict[str, Any]) -> Self:
        """Reads what the server sends."""
        return cls(value["path"], value["change"], value["type"], value.get("from"))

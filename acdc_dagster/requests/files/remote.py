"""Request files in an object store.

They are listed through the storage layer of the tables, and read by polars: that layer cannot be
used while it writes a table with the rows, as on a machine with one core both would wait for each
other.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystemHandler, FileType, PyFileSystem

from acdc_dagster.errors import SourceError
from acdc_dagster.requests.lines import Lines, read_remote_lines

_WILDCARDS = frozenset("*?[")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RemoteFile:
    """One file of a store.

    Attributes:
        uri: Its whole name.
        storage_options: As delta-rs and polars take them.
    """

    uri: str
    storage_options: dict[str, str]

    def lines(self) -> Iterator[Lines]:
        """See `read_remote_lines`."""
        return read_remote_lines(self.uri, self.storage_options)

    def __str__(self) -> str:
        return self.uri


def remote_files(place: str, storage_options: dict[str, str]) -> list[RemoteFile]:
    """The files that a URI names, sorted by name; a name is itself before it is a pattern.

    `*`, `?` and `[…]` stand for characters other than `/`, and `**` for any number of folders.

    Args:
        place: URI, with the scheme of an object store or `file`.
        storage_options: As delta-rs takes them.

    Raises:
        SourceError: The store cannot be reached, or refuses.
    """
    scheme, _, rest = place.partition("://")
    bucket, _, path = rest.partition("/")
    root = f"{scheme}://{bucket}/"
    try:
        handler = cast("FileSystemHandler", DeltaStorageHandler(root, storage_options))
        store = PyFileSystem(handler)
        is_file = store.get_file_info([path])[0].type == FileType.File
        names = [path] if is_file else _matches(store, path.split("/"))
    except (OSError, DeltaError) as error:
        raise SourceError(
            f"{place} cannot be listed: {' '.join(_COLOUR.sub('', str(error)).split())}",
            "Correct source.requests in the job's defs.yaml, or storage_options in "
            "resources/<env>.yaml, and check the credentials.",
        ) from error
    return [RemoteFile(root + name, storage_options) for name in names]


def _matches(store: PyFileSystem, pattern: list[str]) -> list[str]:
    fixed = next((n for n, part in enumerate(pattern) if _WILDCARDS & set(part)), None)
    if fixed is None:
        return []
    folder = FileSelector(
        "/".join(pattern[:fixed]), allow_not_found=True, recursive=len(pattern) > fixed + 1
    )
    return sorted(
        info.path
        for info in store.get_file_info(folder)
        if info.type == FileType.File and _fits(info.path.split("/"), pattern)
    )


def _fits(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_fits(name[skipped:], pattern[1:]) for skipped in range(len(name)))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and _fits(name[1:], pattern[1:])

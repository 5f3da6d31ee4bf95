"""Files as a stream of their bytes, unpacked on the way."""

import gzip
import io
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from acdc_dagster.errors import SourceError

# Whatever the file is called.
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Little enough that it cannot unpack to very much.
_READ = 2**16


def open_unpacked(file: Path) -> BinaryIO:
    """The content of a file; gzip and zstd are unpacked, with all their members or frames.

    Reading it raises OSError, EOFError, zlib.error or zstandard.ZstdError where the file is broken
    or breaks off.
    """
    stream = file.open("rb")
    start = stream.read(len(_ZSTD))
    stream.seek(0)
    if file.suffix == ".gz" or start.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=stream))
    if file.suffix == ".zst" or start == _ZSTD:
        return io.BufferedReader(_Frames(stream), 2**20)
    return stream


def check_encoding(file: str, start: bytes) -> None:
    """See that a text file does not begin as UTF-16 does.

    Raises:
        SourceError: It does.
    """
    if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise SourceError(f"{file} is in UTF-16.", "Save it as UTF-8.")


class _Frames(io.RawIOBase):
    """Zstandard frames; the library's own reader takes a frame that breaks off for its end."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `io.RawIOBase.readinto`.

        Raises:
            EOFError: The file ends within a frame.
        """
        while not self._output:
            self._input = self._input or self._packed.read(_READ)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("it ends within a zstd frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def close(self) -> None:
        """Close the packed file too."""
        self._packed.close()
        super().close()

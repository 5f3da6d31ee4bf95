"""Images in a body: the bytes behind a `data:` URL, and what can be seen of them without decoding.

An image is known by the SHA-256 of its bytes. Nothing is fetched: what another address gives may be
another picture tomorrow, and a request has to mean the same each time it is asked.
"""

import hashlib
import struct
from base64 import b64decode
from binascii import Error as NotBase64
from typing import NamedTuple

from acdc_dagster.requests.refused import Refused

# Bytes of one image, and pixels: Pillow, which the engine decodes with, takes more for an attack.
MOST_BYTES, MOST_PIXELS = 20 * 2**20, 89_478_485
_SHOWN = 60  # characters of an address in a message


class Image(NamedTuple):
    """One image.

    Attributes:
        sha256: Of its bytes, 32 bytes.
        media_type: As its first bytes show it, whatever the URL says.
        content: The file's bytes.
        width: Pixels as they are stored,
        height: likewise.
        may_be_turned: The file has EXIF data, which may ask for a turn by 90 degrees.
    """

    sha256: bytes
    media_type: str
    content: bytes
    width: int
    height: int
    may_be_turned: bool


def check_image(url: str, at: str) -> None:
    """See that an address is a `data:` URL with an image in it; `at` says where it stands.

    Raises:
        Refused: It is not; the codes are those of the OpenAI API.
    """
    _seen(_content(url, at), at)


def image_of(url: str) -> Image:
    """The image of a `data:` URL that `check_image` has seen."""
    content = _content(url, "image_url")
    media_type, width, height = _seen(content, "image_url")
    may_be_turned = any(mark in content for mark in (b"Exif\0\0", b"eXIf", b"EXIF"))
    digest = hashlib.sha256(content).digest()
    return Image(digest, media_type, content, width, height, may_be_turned)


def _content(url: str, at: str) -> bytes:
    scheme, colon, rest = url.partition(":")
    if not colon or scheme.lower() != "data":
        raise Refused(
            "invalid_image_url",
            f"{at}: {url[:_SHOWN]!r} is no data URL, and images are not fetched; put "
            "the image's bytes into the request as data:image/…;base64,….",
        )
    kind, comma, text = rest.partition(",")
    if not comma or not kind.lower().endswith(";base64"):
        raise Refused(
            "invalid_image_url",
            f"{at}: the data URL is not written as data:image/…;base64,….",
        )
    if len(text) > MOST_BYTES // 3 * 4 + 4:
        raise Refused(
            "image_file_too_large",
            f"{at}: the image has about {len(text) // 4 * 3:,} bytes, more than the {MOST_BYTES:,} "
            "that are taken; scale it down.",
        )
    try:
        content = b64decode(text, validate=True)
    except (NotBase64, ValueError) as error:  # ValueError: letters outside ASCII
        raise Refused("invalid_base64_image", f"{at}: the image is no base64: {error}.") from None
    if not content:
        raise Refused("empty_image_file", f"{at}: the image has no bytes.")
    return content


def _seen(content: bytes, at: str) -> tuple[str, int, int]:
    """Media type, width and height."""
    found = [kind for kind in _KINDS if content.startswith(kind[0])]
    if not found:
        raise Refused(
            "invalid_image_format",
            f"{at}: the bytes are no PNG, JPEG, GIF, WebP or BMP image; convert it to one.",
        )
    _, media_type, size_of = found[0]
    try:
        width, height = size_of(content)
    except (struct.error, IndexError):
        width = height = 0
    if not width or not height:
        raise Refused(
            "image_parse_error", f"{at}: the {media_type} image is broken or cut off; save it anew."
        )
    if width * height > MOST_PIXELS:
        raise Refused(
            "image_too_large",
            f"{at}: the image has {width:,} x {height:,} pixels, more than the {MOST_PIXELS:,} "
            "that are taken; scale it down.",
        )
    return media_type, width, height


def _png(content: bytes) -> tuple[int, int]:
    return struct.unpack_from(">II", content, 16)


def _gif(content: bytes) -> tuple[int, int]:
    return struct.unpack_from("<HH", content, 6)


def _bmp(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<ii", content, 18)
    return abs(width), abs(height)  # rows from top to bottom have a negative height


def _jpeg(content: bytes) -> tuple[int, int]:
    """From the frame header, the first SOF segment (ITU-T T.81, B.2.2)."""
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", content, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", content, at + 5)
            return width, height
        at += 2 + length
    return 0, 0


def _webp(content: bytes) -> tuple[int, int]:
    """From the first chunk (RFC 9649): lossy, lossless or extended."""
    if content[8:12] != b"WEBP":
        return 0, 0
    kind = content[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        size = content[24:30]
        return (
            int.from_bytes(size[:3], "little") + 1,
            int.from_bytes(size[3:], "little") + 1,
        )
    return 0, 0


_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png", _png),
    (b"\xff\xd8\xff", "image/jpeg", _jpeg),
    (b"GIF87a", "image/gif", _gif),
    (b"GIF89a", "image/gif", _gif),
    (b"RIFF", "image/webp", _webp),
    (b"BM", "image/bmp", _bmp),
)

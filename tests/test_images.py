"""Images of a body: what is taken, what is refused with which code, and what is seen of a file."""

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from support import MODEL, request_line, take_files
from vision_model import data_url, image_part, png, text_part

from acdc_dagster.requests.images import MOST_BYTES, image_of


def saved(form: str, size: tuple[int, int] = (31, 17), **how: Any) -> bytes:
    """A picture in a file format."""
    file = io.BytesIO()
    Pillow.new("RGB", size, (9, 99, 200)).save(file, form, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (saved("PNG"), "image/png"),
        (saved("JPEG"), "image/jpeg"),
        (saved("JPEG", progressive=True), "image/jpeg"),
        (saved("GIF"), "image/gif"),
        (saved("BMP"), "image/bmp"),
        (saved("WEBP"), "image/webp"),
        (saved("WEBP", lossless=True), "image/webp"),
        (saved("WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"), "image/webp"),
    ],
    ids=["png", "jpeg", "progressive", "gif", "bmp", "webp", "lossless", "extended"],
)
def test_the_kind_and_size_are_those_of_the_file(content: bytes, media_type: str) -> None:
    """Whatever the URL calls it; an image is known by the hash of its bytes."""
    image = image_of(data_url(content, "image/tiff"))
    assert (image.media_type, image.width, image.height) == (media_type, 31, 17)
    assert (image.content, image.sha256) == (content, hashlib.sha256(content).digest())
    assert image.may_be_turned == (b"EXIF" in content)


def test_an_image_with_exif_data_may_be_turned() -> None:
    """Its orientation may swap width and height, so the size alone does not tell its tokens."""
    orientation = Pillow.Exif()
    orientation[0x0112] = 6
    assert image_of(data_url(saved("JPEG", exif=orientation))).may_be_turned
    assert image_of(data_url(saved("PNG", exif=orientation))).may_be_turned


def test_a_good_image_is_taken_and_the_body_stays(tmp_path: Path) -> None:
    """Byte for byte, with or without `detail`."""
    detailed = image_part(png(1))
    detailed["image_url"]["detail"] = "auto"
    lines = [
        request_line("a", [text_part("What?"), image_part(png(1))]),
        request_line("b", [detailed]),
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(lines))
    taken = take_files([file], MODEL)
    assert taken.rejections == []
    bodies = taken.requests["body"].to_list()
    assert all(body in line for body, line in zip(bodies, lines, strict=True))


def url_part(url: str, **more: Any) -> dict[str, Any]:
    """An image part with this address."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        (url_part("https://example.com/a.png"), "invalid_image_url", "not fetched"),
        (url_part("file:///etc/passwd"), "invalid_image_url", "not fetched"),
        (url_part("AAAA"), "invalid_image_url", "not fetched"),
        (url_part("data:image/png,plain"), "invalid_image_url", "base64"),
        (url_part("data:image/png;base64"), "invalid_image_url", "base64"),
        (url_part("data:image/png;base64,AA!A"), "invalid_base64_image", "no base64"),
        (url_part("data:image/png;base64,AAA"), "invalid_base64_image", "no base64"),
        (url_part("data:image/png;base64,ÄÄÄÄ"), "invalid_base64_image", "no base64"),
        (url_part("data:image/png;base64,"), "empty_image_file", "no bytes"),
        (url_part(data_url(b"<svg/>")), "invalid_image_format", "PNG"),
        (url_part(data_url(png(1)[:20])), "image_parse_error", "cut off"),
        (url_part(data_url(saved("JPEG")[:40])), "image_parse_error", "cut off"),
        (url_part(data_url(b"RIFF____WAVEfmt ")), "image_parse_error", "image/webp"),
        (url_part(data_url(png(1)[:16] + b"\xff" * 60)), "image_too_large", "pixels"),
        (url_part(data_url(b"\0" * (MOST_BYTES + 3))), "image_file_too_large", "scale it down"),
        (url_part(data_url(png(1)), detail="low"), "invalid_value", "detail"),
        (url_part(data_url(png(1)), size=3), "unsupported_parameter", "size"),
        ({"type": "image_url"}, "missing_required_parameter", "image_url"),
    ],
)
def test_a_bad_image_rejects_its_row(
    tmp_path: Path, part: dict[str, Any], code: str, said: str
) -> None:
    """With a code of the OpenAI API where it has one, and where the image stands; the rest runs."""
    file = tmp_path / "requests.jsonl"
    content = [text_part("What?"), image_part(png(1)), part]
    file.write_text("\n".join([request_line("bad", content), request_line("good")]))
    taken = take_files([file], MODEL)
    (rejection,) = taken.rejections
    assert (rejection.custom_id, rejection.line, rejection.code) == ("bad", 1, code)
    assert "messages[0]" in rejection.message
    assert said in rejection.message
    assert taken.requests["custom_id"].to_list() == ["good"]


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_only_a_user_shows_images(tmp_path: Path, role: str) -> None:
    """An image in another message rejects the row."""
    messages = [{"role": role, "content": [image_part(png(1))]}, {"role": "user", "content": "x"}]
    file = tmp_path / "requests.jsonl"
    file.write_text(request_line("bad", messages=messages))
    (rejection,) = take_files([file], MODEL).rejections
    assert (rejection.code, "user" in rejection.message) == ("unsupported_content", True)

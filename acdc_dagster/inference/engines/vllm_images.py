"""Images for vLLM: decoded as `vllm serve` decodes them, and named by their hash.

By that name vLLM knows an image again: it is processed and encoded once for all requests that show
it, while its caches hold it, and prompts that show different images share no KV blocks behind them.
"""

from base64 import b64encode
from typing import Any

from acdc_dagster.inference.engines.protocol import Image

# Decoded images that are kept: requests that show the same one come one after the other.
_KEPT = 8


class Images:
    """Makes what vLLM takes beside the token ids of a prompt."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}  # the one used last at the end

    def beside(self, images: list[Image]) -> dict[str, Any]:
        """The fields of a prompt that shows these images.

        Raises:
            ValueError: One of them cannot be decoded.
        """
        if not images:
            return {}
        return {
            "multi_modal_data": {"image": [self._decoded(image) for image in images]},
            "multi_modal_uuids": {"image": [image.sha256 for image in images]},
        }

    def _decoded(self, image: Image) -> Any:
        from vllm.multimodal.utils import fetch_image

        found = self._kept.pop(image.sha256, None)
        if found is None:
            # vLLM looks at the bytes, whatever the media type is.
            found = fetch_image(f"data:image/png;base64,{b64encode(image.content).decode()}")
        self._kept[image.sha256] = found
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return found

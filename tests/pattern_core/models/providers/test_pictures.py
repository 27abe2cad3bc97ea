from __future__ import annotations

from pattern_core.messages import Image
from pattern_core.models.providers.pictures import base64_of, url_of


def test_bytes_come_before_addresses() -> None:
    held = Image(media_type="image/png", data=b"\x89PNG", digest="ab")
    assert (base64_of(held), url_of(held)) == ("iVBORw==", "data:image/png;base64,iVBORw==")
    linked = Image(media_type="", url="https://x/a.png")
    assert (base64_of(linked), url_of(linked)) == (None, "https://x/a.png")
    assert url_of(Image(media_type="image/png", digest="ab")) is None

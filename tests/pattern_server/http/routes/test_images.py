"""Messages with images, sent, told and shown again."""

from __future__ import annotations

import base64

from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/messages"
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
CONTENT = [
    {"type": "text", "text": "What is this?"},
    {"type": "image", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
]


async def test_an_image_is_told_by_its_digest_and_shown(place: Place) -> None:
    await place.constellation()
    answer = await place.admin.post(HERE, json={"content": CONTENT})
    assert answer.status_code == 200, answer.text
    said = (await place.admin.get(HERE)).json()["items"][-1]
    assert said["content"] == "What is this?"
    words, image = said["parts"]
    assert words == {"type": "text", "text": "What is this?"}
    assert (image["type"], image["media_type"]) == ("image", "image/png")
    shown = await place.admin.get(f"/constellations/home/images/{image['digest']}")
    assert (shown.status_code, shown.content) == (200, PNG)
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["x-content-type-options"] == "nosniff"


async def test_there_is_no_such_image(place: Place) -> None:
    await place.constellation()
    assert (await place.admin.get(f"/constellations/home/images/{'0' * 64}")).status_code == 404
    assert (await place.admin.get("/constellations/home/images/nonsense")).status_code == 404


async def test_what_is_no_content_is_refused(place: Place) -> None:
    await place.constellation()
    for content in ([], [{"type": "text", "text": " "}], [{"type": "film"}], [{"type": "image"}], 3):
        answer = await place.admin.post(HERE, json={"content": content})
        assert answer.status_code == 422, (content, answer.text)
    assert (await place.admin.get(HERE)).json()["items"] == []

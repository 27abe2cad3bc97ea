"""The page `/docs`: what the server sends, and in a browser (extra `browser`) what a person sees and does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.testing.model import Paced, ScriptedProvider, says
from tests.pattern_server.http.test_openapi import described, operations
from tests.pattern_server.place import Place

CHROMIUM = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
browsed = pytest.mark.skipif(
    find_spec("playwright") is None or CHROMIUM is None, reason="needs the extra `browser`, and Chromium or Chrome"
)
HOSTILE = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'><style>*{display:none}</style>"
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


async def test_it_is_small_and_loads_nothing_from_elsewhere(place: Place) -> None:
    async with httpx2.AsyncClient(base_url=place.url, trust_env=False) as stranger:
        page = await stranger.get("/docs")
        loaded = re.findall(r'<(?:script src|link rel="stylesheet" href)="([^"]+)"', page.text)
        style, script = [await stranger.get(f"/{path}") for path in loaded]
        assert (await stranger.get("/docs/page.html")).status_code == 401
    types = [one.headers["content-type"].partition(";")[0] for one in (page, style, script)]
    assert types == ["text/html", "text/css", "text/javascript"]
    assert sum(len(one.content) for one in (page, style, script)) <= 60_000
    for one in (page, style, script):
        policy = one.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';" in policy
        assert "unsafe" not in policy
        assert one.headers["x-content-type-options"] == "nosniff"
        assert {*re.findall(r"https?://[^'\s]+|@import|url\(", one.text)} <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<style|<script>|\son\w+=|\sstyle=", page.text), "the policy allows nothing inline"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", script.text)


async def visit(place: Place, story: Callable[[Any], None], *, width: int = 1280, scheme: str = "light") -> None:
    """Run a story with the open page in a new browser; its console must stay silent."""
    api = import_module("playwright.sync_api")
    wrong: list[str] = []

    def run() -> None:
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM)
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.set_default_timeout(10_000)
            page.on("console", lambda message: wrong.append(message.text))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(f"{place.url}/docs")
            page.wait_for_selector("#groups li")
            story(page)
            browser.close()

    await trio.to_thread.run_sync(run)
    assert not wrong


def item(page: Any, name: str) -> Any:
    """An opened operation or event."""
    page.evaluate("(name) => { location.hash = name; }", name)
    found = page.locator(f'[id="{name}"]')
    found.locator(".body").wait_for()
    return found


def log_in(page: Any, token: str) -> None:
    page.get_by_label("API token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#caller.good")


@browsed
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
async def test_everything_is_shown_and_fits(place: Place, width: int, scheme: str) -> None:
    def story(page: Any) -> None:
        shown = page.eval_on_selector_all(".item", "(all) => all.map((one) => one.id)")
        events = described()["components"]["schemas"]["Event"]["discriminator"]["mapping"]
        assert sorted(shown) == sorted(
            [*(one["operationId"] for one in operations()), *(f"event.{one}" for one in events)]
        )
        for _ in range(3):  # fields within fields appear with their parents
            page.evaluate(OPEN_ALL)
            page.wait_for_timeout(200)
        text = page.locator("main").inner_text()
        for name, schema in described()["components"]["schemas"].items():
            if not name.endswith("Event"):
                assert all(field in text for field in schema.get("properties", {})), name
        wide = """() => [...document.querySelectorAll("body *")].filter((one) =>
            one.checkVisibility() && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
            && !one.closest(".skip, .hidden")).map((one) => one.outerHTML.slice(0, 200))"""
        assert page.evaluate(wide) == []
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", background)[0]) < 128) == (scheme == "dark")

    await visit(place, story, width=width, scheme=scheme)


@browsed
@pytest.mark.slow
async def test_the_filter_and_addresses_lead_to_operations(place: Place) -> None:
    def story(page: Any) -> None:
        visible = "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.id)"
        page.keyboard.press("/")
        page.keyboard.type("undo memory")
        assert page.eval_on_selector_all(".item", visible) == ["memory.undo", "memory.redo"]
        assert page.eval_on_selector_all("main section", visible) == ["memory"]
        assert page.locator("#count").inner_text().startswith("2 of ")
        for key in ("Tab", "Tab", "Tab", "Enter"):  # over the group and the link to openapi.json
            page.keyboard.press(key)
        page.locator('[id="memory.undo"] .body').wait_for()
        assert page.url.endswith("#memory.undo")
        page.get_by_label("Filter").fill("idempotency_mismatch")
        assert page.eval_on_selector_all("main section", visible) == ["errors"]
        assert item(page, "agents.list").is_visible(), "an address has priority over the filter"
        page.goto(f"{place.url}/docs#turns.cancel")
        page.reload()
        page.locator('[id="turns.cancel"] .body').wait_for()

    await visit(place, story)


@browsed
@pytest.mark.slow
async def test_a_message_is_sent_and_its_events_stream(home: Place, scripted: ScriptedProvider) -> None:
    gate, never = trio.Event(), trio.Event()
    answers = [Paced(answer=says("You like walnuts."), gate=gate), Paced(answer=says("Never."), gate=never)]
    scripted._script = iter(answers)
    token = home.parts.local_token
    asked: list[str] = []

    def refuse(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    def story(page: Any) -> None:
        log_in(page, token)
        assert page.locator("#caller").inner_text().startswith("admin: ")
        send = item(page, "messages.send")
        send.get_by_label("c", exact=True).focus()
        page.wait_for_selector('[id="messages.send.path.c.list"] option[value="home"]', state="attached")
        send.get_by_label("c", exact=True).fill("home")
        send.get_by_label("a", exact=True).fill("ada")
        curl = send.locator(".curl").inner_text()
        assert "/constellations/home/agents/ada/messages'" in curl and "$PATTERN_TOKEN" in curl
        assert token not in curl and '"content": "What do I like?"' in curl
        send.get_by_role("button", name="Send").click()
        send.locator("li", has_text="step.started").wait_for()
        assert not send.get_by_text("The stream has ended.").is_visible(), "the model has not answered yet"
        trio.from_thread.run_sync(gate.set)
        send.get_by_text("The stream has ended.").wait_for()
        assert send.locator(".answer").inner_text() == "You like walnuts."
        assert "turn.completed" in send.locator("li").last.inner_text()
        assert "content-type: text/event-stream" in send.locator(".headers").inner_text()
        send.get_by_role("button", name="Send").click()
        send.locator("li", has_text="step.started").wait_for()
        send.get_by_role("button", name="Stop").click()
        send.get_by_text("Stopped.").wait_for()
        page.reload()
        page.wait_for_selector("#caller.good")
        listed = item(page, "agents.get")
        assert listed.get_by_label("c", exact=True).input_value() == "home"
        listed.get_by_label("a", exact=True).press("Enter")
        assert '"name": "ada"' in listed.locator(".output pre").inner_text()
        page.on("dialog", refuse)
        item(page, "agents.delete").get_by_role("button", name="Send").click()
        assert asked == ["Send DELETE /api/v1/constellations/home/agents/ada?"]

    await visit(home, story)
    assert scripted.asked == 2
    assert (await home.admin.get("/constellations/home/agents/ada")).status_code == 200
    never.set()


@browsed
@pytest.mark.slow
async def test_hostile_text_stays_text(home: Place) -> None:
    await home.constellation("evil", description=HOSTILE)

    def spoiled(value: Any, key: str = "") -> Any:
        """The description with hostile text wherever text is shown."""
        if isinstance(value, dict):
            return {name: spoiled(one, name) for name, one in value.items()} | (
                {HOSTILE: {"type": "string"}} if key == "properties" else {}
            )
        if isinstance(value, list):
            return [*(spoiled(one) for one in value), HOSTILE] if key == "enum" else [spoiled(one) for one in value]
        return value + HOSTILE if key in ("description", "summary", "default") and isinstance(value, str) else value

    def story(page: Any) -> None:
        page.route("**/openapi.json", lambda route: route.fulfill(json=spoiled(described())))
        page.reload()
        page.wait_for_selector("#groups li")
        log_in(page, home.parts.local_token)
        page.evaluate(OPEN_ALL)
        shown = item(page, "agents.get")
        shown.get_by_label("c", exact=True).fill("evil")
        shown.get_by_label("a", exact=True).fill("ada")
        shown.get_by_role("button", name="Send").click()
        assert json.dumps(HOSTILE) in shown.locator(".output pre").inner_text()
        assert HOSTILE in shown.locator(".docs").inner_text()
        assert page.locator("main").locator("img, script, style, iframe").count() == 0
        assert page.evaluate("typeof hacked") == "undefined"

    await visit(home, story)

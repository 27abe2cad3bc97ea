"""Pages that were read lately, so that reading on asks nobody; bounded in age and size."""

from __future__ import annotations

from collections import OrderedDict

from pattern_core.ids import Clock
from pattern_core.web.page import Format, Page

AGE_MS_MAX = 5 * 60_000
CHARS_MAX = 8_000_000  # of all pages together
PAGE_CHARS = 1_000  # that a page counts besides its text: its addresses, its title


class PageCache:
    """Pages by address and form; the least used go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: OrderedDict[tuple[str, Format], tuple[int, Page]] = OrderedDict()
        self._chars = 0

    def get(self, url: str, wanted: Format) -> Page | None:
        """The page, if it is here and young enough."""
        found = self._pages.get((url, wanted))
        if found is None:
            return None
        if not 0 <= self._clock.now_ms() - found[0] < AGE_MS_MAX:
            self._remove((url, wanted))
            return None
        self._pages.move_to_end((url, wanted))
        return found[1]

    def put(self, url: str, page: Page) -> None:
        """Keep a page that was asked for as `url`, in the place of others if need be."""
        key = (url, page.format)
        if key in self._pages:
            self._remove(key)
        self._pages[key] = (self._clock.now_ms(), page)
        self._chars += PAGE_CHARS + len(page.text)
        while self._chars > CHARS_MAX:
            self._remove(next(iter(self._pages)))

    def _remove(self, key: tuple[str, Format]) -> None:
        _since, page = self._pages.pop(key)
        self._chars -= PAGE_CHARS + len(page.text)

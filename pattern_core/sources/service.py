"""A call of a service's API over HTTP: its answer, or an error that says what to do and shows no secret.

Sources: RFC 9110, 10.2.3 and 15 (Retry-After, statuses). Services that say in other ways when to continue are named
where that is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.source import IS_UNCLEAR, SourceAccount, SourceKind, take_fields
from pattern_core.web.download import Download
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

REFUSED_S = 900.0  # before a request that will be refused, until a person does something
AGAIN_S = 10.0  # where a service wants fewer requests and does not say when
AGAIN_S_MAX = 24 * 3600.0
STATUS = "service_status"  # in an error's details: the status that the answer had or meant
BUTTONS = (("Approve", "y"), ("Deny", "n"))  # under a question: the label, and how what it sends begins
WORD = re.compile(r"[!-~]{1,1000}")
_WORDS = ("errcode", "error", "message", "description", "needed")  # where services say what is wrong, its name first


class ServiceKind(SourceKind):
    """A kind of a service with an API at the address `home`, unless the operator allows another `base_url`."""

    home: ClassVar[str]

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {**dict.fromkeys(self.secret_fields), "base_url": self.home})
        settings.check_service(found["base_url"], self.home)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceApi:
    """A service as errors name it. `advice` is what to do if it does not accept the account's secret, and `advices` by
    the name of the error; `means` are statuses, and names of errors, that mean another status.
    """

    name: str
    advice: str
    advices: Mapping[str, str] = field(default_factory=dict)
    means: Mapping[object, int] = field(default_factory=dict)

    async def secret(self, account: SourceAccount, key: str = "token") -> str:
        """Return a secret that becomes part of an address or a header.

        Raises:
            InvalidInput: it is not configured, or cannot be one; the message does not show it.
        """
        found = await account.secret(key)
        if not WORD.fullmatch(found):
            raise InvalidInput(f"the secret of `{key}` holds characters that no token has; copy it again")
        return found

    async def call(
        self,
        account: SourceAccount,
        url: str,
        given: Mapping[str, Json] | tuple[str, bytes] | None = None,
        *,
        secrets: Sequence[str],
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
        timeout_s: float = 0.0,
    ) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON that the service answers with, and the headers. What is `given`, an object or a
        form (`multipart`), is posted, unless the `method` is another one; no error shows one of the `secrets`.

        Raises:
            Overloaded: too many requests; `details["retry_after_s"]` says when to continue.
            PermissionDenied: the secret is not accepted, or (`IS_FINAL`) this is not allowed.
            NotFound, InvalidInput: it will never be accepted (`IS_FINAL`), or the answer is too long.
            Unavailable: there was no answer that could be read; whether it was done is unclear, unless it was not sent.
        """
        sent = {"Accept": "application/json", **(headers or {})}
        body = None
        if given is not None:
            form = given if isinstance(given, tuple) else ("application/json", json.dumps(given).encode())
            sent["Content-Type"], body = form
        with hiding(url, secrets):
            page = await account.fetch(
                url, timeout_s=timeout_s, headers=sent, body=body, method=method, redirects_max=0
            )
            return self._read(page, account.clock.now_ms()), page.headers

    def _read(self, page: Download, now_ms: int) -> Any:
        answer, is_read = None, False
        with suppress(ValueError, RecursionError):
            answer, is_read = (json.loads(page.body) if page.body else None), True
        about = answer if isinstance(answer, dict) else {}
        words = [str(about[key]) for key in _WORDS if about.get(key)]
        name = words[0] if words else ""
        is_refused = page.status == 200 and about.get("ok") is False  # Slack
        status = self.means.get(name, 400 if is_refused else self.means.get(page.status, page.status))
        said = ": ".join(words)[:200] or f"HTTP status {page.status}"
        kind: type[PatternError] = Unavailable
        why, details = "cannot answer now", dict[str, object]()
        match status:
            case 200 | 201 | 202 | 204 if is_read:
                return answer
            case 200 if page.is_cut:
                kind, why, said = InvalidInput, "sent more than can be read", f"{len(page.body)} bytes and more"
            case 429:
                kind, why, details = Overloaded, "wants fewer requests", {"retry_after_s": _wait_s(page, about, now_ms)}
            case 401:
                kind, why, details = PermissionDenied, "does not accept the secret", {"retry_after_s": REFUSED_S}
                said = f"{said}; {self.advices.get(name, self.advice)}"
            case 403:
                kind, why = PermissionDenied, "does not allow this"
            case 404 | 410:
                kind, why = NotFound, "does not have this"
            case status if 400 <= status < 500 and status not in (408, 409, 425):
                kind, why = InvalidInput, "refused this"
        if kind is not Unavailable and not details:
            details[IS_FINAL] = True
        raise kind(f"{self.name} {why}: {said}", **{STATUS: status}, **details)


def checked(value: object, form: re.Pattern[str] = WORD) -> str:
    """Return what a service sent if it has this form, as what becomes part of addresses must.

    Raises:
        ValueError: it has not; it is not shown, since it may be secret.
    """
    if not (isinstance(value, str) and form.fullmatch(value)):
        raise ValueError("an id or a token is not as the protocol says")
    return value


def pressed(data: str) -> tuple[str, bool]:
    """Return the id of the question and the answer that a button of `BUTTONS` sends, as `sign:id`."""
    sign, _, approval_id = data.partition(":")
    return approval_id, sign == BUTTONS[0][1]


@contextmanager
def hiding(url: str, secrets: Sequence[str]) -> Iterator[None]:
    """Leave out of the errors of a request these `secrets` and the query; say whether it may have been done.

    Raises:
        PatternError: as what is in the block; Unavailable if there is no such host, perhaps only now.
    """
    try:
        yield
    except PatternError as error:
        kind, details, words = type(error), dict(error.details), error.message.replace(url, url.partition("?")[0])
        if isinstance(error, NotFound) and STATUS not in details:
            kind = Unavailable
        elif isinstance(error, Unavailable):
            details[IS_UNCLEAR] = details.get("was_sent") is not False
        for secret in secrets:
            words = words.replace(secret, "…")
        raise kind(words, **details) from None


def _wait_s(page: Download, about: Mapping[str, Any], now_ms: int) -> float:
    """Return how long a service wants to be left alone, in seconds."""
    inner = about.get("parameters")
    said = (
        _number(about.get("retry_after")),  # Discord
        _number(inner.get("retry_after") if isinstance(inner, dict) else None),  # Telegram
        _number(about.get("retry_after_ms")) / 1000,  # Matrix
        _number(page.headers.get("retry-after")),
        _number(page.headers.get("ratelimit-reset")) - now_ms / 1000,  # Bluesky
    )
    return min(next((one for one in said if one > 0), AGAIN_S), AGAIN_S_MAX)


def _number(value: object) -> float:
    with suppress(TypeError, ValueError, OverflowError):
        if math.isfinite(found := float(value)):  # type: ignore[arg-type]  # anything else raises
            return found
    return 0.0

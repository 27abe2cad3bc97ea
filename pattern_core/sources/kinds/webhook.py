"""Webhooks of other services: they post an event to `/hooks/{account}`, and prove with a secret who they are.

Sources: GitHub's `X-Hub-Signature-256` (docs.github.com, "Validating webhook deliveries"); Standard Webhooks
(github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md), which also says when it was sent.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import ClassVar

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.sources.source import SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json, check_depth

WINDOW_S = 300  # how old a signed request may be
SIGNATURES = ("standard", "github", "token")
BODY_BYTES_MAX = 256 * 1024
_ID_HEADERS = ("webhook-id", "x-gitlab-event-uuid", "idempotency-key")


class HookSource(SourceKind):
    """Is called by its service with a signed request."""

    fields: ClassVar = {
        "secret": "name of a secret below [sources.secrets] that the service has, too",
        "signature": f"how a request is proved: {', '.join(SIGNATURES)} (in the header Authorization or X-Token)",
        "title": "the place of a title in the JSON, such as repository.full_name",
    }
    secret_fields: ClassVar = ("secret",)
    is_called: ClassVar = True

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"secret": None, "signature": "standard", "title": ""})
        if found["signature"] not in SIGNATURES:
            raise InvalidInput(f"`signature` is one of {', '.join(SIGNATURES)}")
        return found

    async def called(self, account: SourceAccount, headers: Mapping[str, str], body: bytes) -> SourceEvent:
        """Return the event that a service posts, as `SourceKind.called`."""
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInput(f"the body has {len(body)} bytes, more than {BODY_BYTES_MAX}")
        _prove(account.config["signature"], await account.secret("secret"), headers, body, account.clock.now_ms())
        # Without an id of the service, equal bodies are one event; so they are where the id is not signed.
        is_signed = account.config["signature"] != "github"
        given = next((headers[name] for name in _ID_HEADERS if is_signed and headers.get(name)), "")
        native = given[:200] or blake2b(body, digest_size=16).hexdigest()
        text = body.decode("utf-8", "replace")
        kind = headers.get("x-github-event", "")
        try:
            value = json.loads(text)
            check_depth(value)
            text = json.dumps(value, ensure_ascii=False, indent=1)
        except (ValueError, RecursionError):
            value = None
        place: Json = value
        for part in filter(None, account.config["title"].split(".")):
            place = place.get(part) if isinstance(place, dict) else None
        title = " ".join(filter(None, (kind, place if isinstance(place, str) else "")))
        return SourceEvent(native=native, title=title, text=text)


def _prove(signature: str, secret: str, headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
    """Refuse a request that does not prove that its sender has the secret.

    Raises:
        PermissionDenied: it does not, or was sent too long ago.
    """
    match signature:
        case "github":
            right = f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"
            is_right = hmac.compare_digest(right.encode(), headers.get("x-hub-signature-256", "").encode())
        case "token":
            given = [headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-token", "")]
            is_right = any(hmac.compare_digest(secret.encode(), one.strip().encode()) for one in given)
        case _:
            sent, sent_id = headers.get("webhook-timestamp", ""), headers.get("webhook-id", "")
            if not sent.isdecimal() or len(sent) > 12 or abs(now_ms / 1000 - int(sent)) > WINDOW_S:
                raise PermissionDenied(f"the request is older than {WINDOW_S} s, or does not say when it was sent")
            try:
                key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
            except (binascii.Error, ValueError):
                key = secret.encode()
            key = key if secret.startswith("whsec_") else secret.encode()
            made = hmac.digest(key, f"{sent_id}.{sent}.".encode() + body, "sha256")
            right = f"v1,{base64.b64encode(made).decode()}"
            signatures = headers.get("webhook-signature", "").split(" ")
            is_right = any(hmac.compare_digest(right.encode(), one.encode()) for one in signatures)
    if not is_right:
        raise PermissionDenied("the request's signature or token is wrong; is the secret the same on both sides?")

"""A web in which every name leads to a server on loopback, except those that a test sends elsewhere."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from pattern_core.testing.wire import Play, WireServer
from pattern_core.web.download import Downloader
from pattern_core.web.policy import WebSettings


@dataclass
class Names:
    """Answers look-ups: each name's answers one after the other, the last one for good; else loopback."""

    answers: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self.answers.get(host)
        if found is None:
            return ["127.0.0.1"]
        answer = found.pop(0) if len(found) > 1 else found[0]
        if not answer:
            raise OSError("unknown name")
        return answer


def at_home(server: WireServer, **fields: object) -> WebSettings:
    """Settings by which the server on loopback may be reached."""
    return WebSettings(ports=(server.port,), allow_private=True, **fields)  # type: ignore[arg-type]  # as named


TLS = ssl.create_default_context()  # made once: reading the system's certificates takes a while


def downloader(server: WireServer, names: Names | None = None, *, timeout_s: float = 5.0) -> Downloader:
    return Downloader(at_home(server), timeout_s=timeout_s, resolve=names or Names(), tls=TLS)


def page(body: bytes | str, content_type: str = "text/html; charset=utf-8", **fields: object) -> Play:
    """An answer with this body."""
    data = body.encode() if isinstance(body, str) else body
    headers = {"content-type": content_type, **fields.pop("headers", {})}  # type: ignore[dict-item]  # a dict of texts
    return Play(chunks=(data,), headers=headers, **fields)  # type: ignore[arg-type]  # as named


def redirect(location: str, status: int = 302) -> Play:
    return Play(status=status, headers={"location": location})

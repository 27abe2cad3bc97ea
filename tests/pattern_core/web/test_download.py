from __future__ import annotations

import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied, Unavailable
from pattern_core.testing.wire import Play, WireRequest, WireServer
from pattern_core.web import download as module
from pattern_core.web.download import REDIRECTS_MAX, Download, Downloader, check_status
from pattern_core.web.policy import WebPolicy
from tests.pattern_core.web.certificate import CERTIFICATE, KEY
from tests.pattern_core.web.rig import Names, at_home, downloader, page, redirect


async def test_a_page_with_its_headers() -> None:
    script = [page("Grüße", 'text/HTML; charset="utf-8"', headers={"set-cookie": "id=7"}), page("two")]
    async with WireServer(script) as server:
        getter, url = downloader(server), f"http://example.org:{server.port}/a?b=c"
        got = await getter.get(f"{url}#d")
        assert (got.url, got.status, got.body.decode()) == (url, 200, "Grüße")
        assert (got.content_type, got.charset, got.is_cut) == ("text/html", "utf-8", False)
        await getter.get(url)
        for request in server.requests:
            assert (request.method, request.path) == ("GET", "/a?b=c")
            assert request.headers["host"] == f"example.org:{server.port}"
            assert "cookie" not in request.headers and "authorization" not in request.headers


async def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    """A second look-up would lead elsewhere: it must never be made."""
    names = Names({"rebind.example": [["127.0.0.1"], ["192.0.2.1"]]})
    async with WireServer([page("ok")]) as server:
        assert (await downloader(server, names).get(f"http://rebind.example:{server.port}/")).body == b"ok"
        assert names.asked == ["rebind.example"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "100.64.0.1"]
)
async def test_nothing_connects_to_what_is_not_public(address: str) -> None:
    async with WireServer([page("secret")]) as server:
        for addresses in ([address], ["8.8.8.8", address]):
            names = Names({"trap.example": [addresses]})
            getter = Downloader(WebPolicy(ports=(server.port,)), resolve=names)
            with pytest.raises(PermissionDenied, match="may not be visited"):
                await getter.get(f"http://trap.example:{server.port}/")
        assert server.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "017700000001", "[::1]", "localhost"])
async def test_however_this_machine_is_written_it_is_not_reached(host: str) -> None:
    async with WireServer([page("secret")]) as server:
        with pytest.raises((PermissionDenied, NotFound)):
            await Downloader(WebPolicy(ports=(server.port,))).get(f"http://{host}:{server.port}/")
        assert server.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "another-name.example", "169.254.169.254"])
async def test_not_all_is_reached_at_home(host: str) -> None:
    names = Names({"169.254.169.254": [["169.254.169.254"]]})  # where clouds keep their metadata
    async with WireServer([page("secret")]) as server:
        getter = Downloader(at_home(server, deny_hosts=("127.0.0.1",)), resolve=names)
        with pytest.raises(PermissionDenied, match="may not be visited"):
            await getter.get(f"http://{host}:{server.port}/")
        assert server.connections == 0


async def test_redirections_are_followed_and_checked() -> None:
    names = Names({"inner.example": [["169.254.169.254"]]})

    def elsewhere(_request: WireRequest) -> Play:
        return redirect(f"//other.example:{server.port}/c")

    async with WireServer([redirect("/b", 301), elsewhere, page("end")]) as server:
        got = await downloader(server, names).get(f"http://example.org:{server.port}/a")
        assert (got.body, got.url) == (b"end", f"http://other.example:{server.port}/c")
        assert [request.path for request in server.requests] == ["/a", "/b", "/c"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_every_status_of_a_redirection_is_followed(status: int) -> None:
    async with WireServer([redirect("/b", status), page("end")]) as server:
        got = await downloader(server).get(f"http://example.org:{server.port}/a")
        assert (got.body, got.is_moved) == (b"end", status in (301, 308))


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://inner.example:{port}/", PermissionDenied),
        ("http://example.org:22/", PermissionDenied),
        ("file:///etc/passwd", InvalidInput),
        ("http://user:pw@example.org/", InvalidInput),
        ("http://[broken", InvalidInput),
    ],
)
async def test_redirections_lead_nowhere_else(location: str, error: type[PatternError]) -> None:
    names = Names({"inner.example": [["169.254.169.254"]]})

    def away(_request: WireRequest) -> Play:
        return redirect(location.format(port=server.port))

    async with WireServer([away]) as server:
        with pytest.raises(error):
            await downloader(server, names).get(f"http://example.org:{server.port}/")
        assert len(server.requests) == 1


@pytest.mark.parametrize("most", [0, REDIRECTS_MAX])
async def test_redirections_end(most: int) -> None:
    async with WireServer(otherwise=redirect("/again")) as server:
        headers = {"x-key": "k", "accept": "text/plain"}
        with pytest.raises(Unavailable, match=f"redirected more than {most} times"):
            await downloader(server).get(f"http://example.org:{server.port}/", headers=headers, redirects_max=most)
        assert [(one.headers["x-key"], one.headers["accept"]) for one in server.requests] == [("k", "text/plain")] * (
            most + 1
        )


async def test_what_is_long_is_cut_and_the_connection_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 10_000)
    endless = Play(chunks=(b"x" * 8_000,) * 3, headers={"content-type": "text/plain"}, never_ends=True)
    async with WireServer([endless]) as server:
        got = await downloader(server).get(f"http://example.org:{server.port}/")
        assert (len(got.body), got.is_cut) == (10_000, True)
        await server.exchanges[0].client_gone.wait()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip", "zstd"])
async def test_pages_come_as_they_are_or_not_at_all(encoding: str) -> None:
    bomb = page(gzip.compress(bytes(5_000_000)), "text/plain", headers={"content-encoding": encoding})
    async with WireServer([page("tea", headers={"content-encoding": "Identity"}), bomb]) as server:
        url = f"http://example.org:{server.port}/"
        assert (await downloader(server).get(url)).body == b"tea"
        assert server.requests[0].headers["accept-encoding"] == "identity"
        with pytest.raises(InvalidInput, match="not asked for"):
            await downloader(server).get(url)


async def test_silence_and_broken_answers_are_errors() -> None:
    async with WireServer([Play(never_answers=True), page("12345", stops_after=2)]) as server:
        with pytest.raises(Unavailable, match=r"not there within 0\.3 s"):
            await downloader(server, timeout_s=0.3).get(f"http://example.org:{server.port}/")
        for exchange in server.exchanges:  # none where connecting took that long
            await exchange.client_gone.wait()
        with pytest.raises(Unavailable, match="broke off"):
            await downloader(server).get(f"http://example.org:{server.port}/")


async def test_the_next_address_is_tried() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.2")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()  # so nothing listens there
    names = Names({"two.example": [["127.0.0.2", "127.0.0.1"]], "none.example": [["127.0.0.2"]], "no.example": [[]]})
    async with WireServer([page("ok")]) as server:
        getter = Downloader(WebPolicy(ports=(server.port, port), allow_private=True), resolve=names)
        assert (await getter.get(f"http://two.example:{server.port}/")).body == b"ok"
        with pytest.raises(Unavailable, match="accepts no connection"):
            await getter.get(f"http://none.example:{port}/")
        with pytest.raises(NotFound, match="is the address right"):
            await getter.get(f"http://no.example:{server.port}/")


def test_an_excuse_is_no_page() -> None:
    for status in (200, 204, 299):
        check_status(Download(url="http://a", status=status))
    errors: dict[type[PatternError], tuple[int, ...]] = {
        NotFound: (404, 410),
        PermissionDenied: (401, 402, 403, 451),
        Unavailable: (408, 425, 429, 500, 503),
        InvalidInput: (300, 304, 400, 499),
    }
    for error, statuses in errors.items():
        for status in statuses:
            with pytest.raises(error, match=f"HTTP status {status}"):
                check_status(Download(url="http://a", status=status))
    for after, words in (("7", "in 7 s"), ("Sat, 01 Jan 2028 00:00:00 GMT", "in 60 s")):
        with pytest.raises(Unavailable, match=words):
            check_status(Download(url="http://a", status=503, headers={"retry-after": after}))


@asynccontextmanager
async def serve_tls(tmp_path: Path, names: list[str | None]) -> AsyncIterator[int]:
    """A server behind TLS that answers everything with tea; `names` takes the names that clients ask for."""
    file = trio.Path(tmp_path / "certificate.pem")
    await file.write_text(CERTIFICATE + KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(file))
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    plain = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = plain[0].socket.getsockname()[1]
    listeners = [trio.SSLListener(listener, context) for listener in plain]

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.do_handshake()
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea")
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners))
        yield port
        nursery.cancel_scope.cancel()


async def test_the_certificate_must_be_for_the_name_though_an_address_is_connected_to(tmp_path: Path) -> None:
    names: list[str | None] = []
    async with serve_tls(tmp_path, names) as port:
        policy = WebPolicy(ports=(port,), allow_private=True)
        trusting = Downloader(policy, resolve=Names(), tls=ssl.create_default_context(cadata=CERTIFICATE))
        assert (await trusting.get(f"https://example.org:{port}/")).body == b"tea"
        assert names == ["example.org"]
        with pytest.raises(Unavailable, match=r"certificate is not valid for 'other\.example'"):
            await trusting.get(f"https://other.example:{port}/")
        with pytest.raises(Unavailable, match="self-signed certificate"):
            await Downloader(policy, resolve=Names()).get(f"https://example.org:{port}/")


async def test_a_body_is_posted_unless_another_method_is_wanted() -> None:
    async with WireServer([page(b"ok")] * 3) as server:
        url = f"http://example.org:{server.port}/"
        await downloader(server).get(url, body=b"{}")
        await downloader(server).get(url, body=b"{}", method="PUT")
        await downloader(server).get(url)
        assert [one.method for one in server.requests] == ["POST", "PUT", "GET"]

"""Sites that stand in for WebArena's: seven servers on loopback, whose pages have the forms, labels and elements that
the tasks' own addresses and locators name. What an agent posts, they show, as the real ones do."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlsplit

from r2v.envs.webarena.addresses import PUBLIC_NAMES, variable

LOGIN = {
    "reddit": ("/login", "Username", "Password", "Log in"),
    "gitlab": ("/users/sign_in", "Username or email", "Password", "Sign in"),
    "shopping": ("/customer/account/login/", "Email", "Password", "Sign In"),
    "shopping_admin": ("/admin", "Username", "Password", "Sign in"),
}
"""Where a site's login is, and its labels, as BrowserGym looks for them."""


class Stub:
    """The state of all sites, and their servers."""

    def __init__(self) -> None:
        self.notes: dict[str, list[dict[str, str]]] = {}
        """What was posted, by the page it was posted to."""
        self.resets = 0
        self.pages: list[str] = []
        """Addresses of pages as they were asked for."""
        self.gone = threading.Event()
        self.servers = {site: Server(("127.0.0.1", 0), _handler(self, site)) for site in PUBLIC_NAMES}
        for server in self.servers.values():
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, site: str) -> str:
        root = f"http://127.0.0.1:{self.servers[site].server_address[1]}"
        return f"{root}/admin" if site == "shopping_admin" else root

    def variables(self, name: str | None = None) -> dict[str, str]:
        return {variable(site, name): self.url(site) for site in PUBLIC_NAMES}

    def close(self) -> None:
        self.gone.set()
        for server in self.servers.values():
            server.shutdown()
            server.server_close()


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True


def _handler(stub: Stub, site: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            stub.pages.append(f"{site}{path}")
            if site == "homepage" and path in ("/reset", "/status"):
                stub.resets += path == "/reset"
                stub.notes.clear()
                return self.answer("Ready for duty!", "text/plain")
            if path.startswith("/rest/"):
                return self.answer(json.dumps(_rest(stub, path)), "application/json")
            if path == "/broken":
                return self.answer("<h1>out of order</h1>", status=502)
            if path == "/hanging":
                stub.gone.wait(600)
                return None
            if site in LOGIN and "in=1" not in self.headers.get("Cookie", ""):
                return self.answer(_login(site, path))
            return self.answer(_page(stub, site, path, {name: values[0] for name, values in query.items()}))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length).decode()
            path = urlsplit(self.path).path
            if path == "/rest/default/V1/integration/admin/token":
                return self.answer('"token"', "application/json")
            form = {name: values[0] for name, values in parse_qs(body).items()}
            if path == "/session":
                return self.send(303, {"Set-Cookie": "in=1; Path=/", "Location": form["back"]})
            stub.notes.setdefault(f"{site}{path}", []).append(form)
            return self.send(303, {"Location": path + "/1/post" if path.startswith("/f/") else path})

        def answer(self, text: str, kind: str = "text/html; charset=utf-8", status: int = 200) -> None:
            body = text.encode()
            self.send(status, {"Content-Type": kind, "Content-Length": str(len(body))}, body)

        def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not a word."""

    return Handler


def _login(site: str, path: str) -> str:
    where, user, password, button = LOGIN[site]
    if site == "reddit" and path != where:
        return _document("reddit", f"<a href='{where}'>Log in</a>")
    back = "/admin" if site == "shopping_admin" else "/"
    fields = f"<label>{user}<input name=u></label><label>{password}<input name=p type=password></label>"
    form = f"<form method=post action=/session><input type=hidden name=back value='{back}'>{fields}"
    return _document(site, f"{form}<button>{button}</button></form>")


def _page(stub: Stub, site: str, path: str, query: dict[str, str]) -> str:
    notes = stub.notes.get(f"{site}{path}", [])
    for part, render in _PAGES.items():
        if part in path:
            return _document(f"{site} {path}", render(stub, path, notes, query))
    said = "".join(f"<p>{escape(value)}</p>" for value in query.values())
    search = "<form action=/search><label>Search<input name=query></label><button>Go</button></form>"
    return _document(f"{site} {path}", search + said)


def _document(title: str, body: str) -> str:
    return f"<!doctype html><title>{escape(title)}</title><body>{body}</body>"


Notes = list[dict[str, str]]


def _form(*labels: str, button: str) -> str:
    fields = "".join(f"<label>{label}<input name='{label}'></label>" for label in labels)
    return f"<form method=post>{fields}<button>{button}</button></form>"


def _merge_request(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    told = "".join(f"<li><div class=timeline-discussion-body>{escape(note['Comment'])}</div></li>" for note in notes)
    return f"<ul id=notes-list>{told}</ul>" + _form("Comment", button="Send")


def _members(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    rows = "".join(
        "<tr><td data-label=Account><span class=gl-avatar-labeled-sublabel>@" + escape(note["Name"]) + "</span></td>"
        "<td class=col-max-role><span>" + escape(note["Role"]) + "</span></td></tr>"
        for note in notes
    )
    return f"<table>{rows}</table>" + _form("Name", "Role", button="Invite")


def _directions(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    start, end, engine = (escape(query.get(name, "")) for name in ("from", "to", "engine"))
    options = "".join(f"<option{' selected' * (name == engine)}>{name}</option>" for name in ("Bicycle", "Car", "Foot"))
    fields = f"<input name=route_from value='{start}'><input name=route_to value='{end}'>"
    return f"<div id=content><select class=routing_engines>{options}</select>{fields}</div>"


def _forum(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    if path.endswith(("/1/", "/post")):
        posted = stub.notes.get("reddit" + path.partition("/1/")[0], [{"Title": ""}])
        return f"<div class=submission__inner>{escape(posted[-1]['Title'])}</div>"
    return _form("Title", button="Create submission")


def _order(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    article = "B07DFJ5XKH" if path.endswith("/171/") else "nothing"
    return f"<div class='order-details-items ordered'>{article}</div>" + _form(button="Reorder")


def _lamp(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    return _form("Stars", "Nickname", button="Submit Review")


def _old_guards(stub: Stub, path: str, notes: Notes, query: dict[str, str]) -> str:
    return "<h1>For jaw bruxism</h1><p>A mouth guard for the night</p>"


_PAGES: dict[str, Callable[[Stub, str, Notes, dict[str, str]], str]] = {
    "/merge_requests/": _merge_request,
    "/project_members": _members,
    "/directions": _directions,
    "/f/": _forum,
    "/sales/order/": _order,
    "/floor-lamp": _lamp,
    "/mouth-guard": _old_guards,
}
"""Part of an address -> its page."""


def _rest(stub: Stub, path: str) -> Any:
    """What the shop's interface for programs answers, which some evaluators ask."""
    if path.endswith("/reviews"):
        return [
            {"nickname": note["Nickname"], "ratings": [{"rating_name": "Rating", "percent": 20 * int(note["Stars"])}]}
            for note in stub.notes.get("shopping/floor-lamp.html", [])
        ]
    ordered = "shopping/sales/order/view/order_id/171/" in stub.notes
    return {"items": [{"increment_id": "000000171" if ordered else "000000170"}]}


def wait_for(state: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it is so."""
    until = time.monotonic() + seconds
    while not state():
        assert time.monotonic() < until
        time.sleep(0.02)

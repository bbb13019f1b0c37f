"""Stand-in sites for WebArena's: seven servers on loopback, whose pages (`stub_pages`) have the forms, labels and
elements that the tasks' own addresses and locators name. They show an agent's posts, as the real sites do."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from r2v.envs.webarena.addresses import PUBLIC_NAMES, variable
from tests.envs.webarena.stub_pages import Notes, document, page, posted, program

LOGIN = {
    "reddit": ("/login", "Username", "Password", "Log in"),
    "gitlab": ("/users/sign_in", "Username or email", "Password", "Sign in"),
    "shopping": ("/customer/account/login/", "Email", "Password", "Sign In"),
    "shopping_admin": ("/admin", "Username", "Password", "Sign in"),
}
"""Paths of the sites' logins, and their labels, as BrowserGym looks for them."""


class Stub:
    """The state of all sites, and their servers."""

    def __init__(self) -> None:
        self.notes: Notes = {}
        """Posted notes, by the page that shows them."""
        self.resets = 0
        self.pages: list[str] = []
        """Addresses of the requested pages, in order."""
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

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that leaves while a page is sent."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


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
                return self.answer(json.dumps(program(stub.notes, path)), "application/json")
            if path == "/broken":
                return self.answer("<h1>out of order</h1>", status=502)
            if path == "/hanging":
                stub.gone.wait(600)
                return None
            if site in LOGIN and "in=1" not in self.headers.get("Cookie", ""):
                return self.answer(_login(site, path))
            return self.answer(page(stub.notes, site, path, {name: values[0] for name, values in query.items()}))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length).decode()
            path = urlsplit(self.path).path
            if path == "/rest/default/V1/integration/admin/token":
                return self.answer('"token"', "application/json")
            if path == "/session":
                form = parse_qs(body)
                return self.send(303, {"Set-Cookie": "in=1; Path=/", "Location": form["back"][0]})
            status, content = posted(stub.notes, site, self.path, self.headers["Content-Type"], body)
            if status == 302:
                return self.send(status, {"Location": content})
            return self.answer(content, "application/json", status)

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
            """Log nothing."""

    return Handler


def _login(site: str, path: str) -> str:
    where, user, password, button = LOGIN[site]
    if site == "reddit" and path != where:
        return document("reddit", f"<a href='{where}'>Log in</a>")
    back = "/admin" if site == "shopping_admin" else "/"
    fields = f"<label>{user}<input name=u></label><label>{password}<input name=p type=password></label>"
    form = f"<form method=post action=/session><input type=hidden name=back value='{back}'>{fields}"
    return document(site, f"{form}<button>{button}</button></form>")


def wait_for(state: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `state` returns True."""
    until = time.monotonic() + seconds
    while not state():
        assert time.monotonic() < until
        time.sleep(0.02)

"""Pages of the stub sites, and the posts that they accept.

A form posts where the real site's does, in its shape: GitLab and the shop's cart by script, as JSON and multipart, the
forum and reviews as forms that are answered by a redirect, and the map shows a route without loading a page. Addresses
and numbers are those that the official tasks and webarena-verified's list name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from email.parser import BytesParser
from html import escape
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

Notes = dict[str, list[dict[str, str]]]
"""Posted notes, by site and path of the page that shows them."""
Note = Mapping[str, Any]

MERGE_REQUESTS = {"primer/design": ("450", "139245"), "a11yproject/a11yproject.com": ("1531", "72594")}
"""Project -> number of the merge request in its address, and the number that its comments are posted to."""
MEMBERS = {"abisubramanya27": 5}
LEVELS = {"Guest": 10, "Reporter": 20}
FORUMS = {"consoles": "10039", "nyc": "9992"}
PRODUCTS = {"/mattress-foundation.html": "14854", "/mattress-cover.html": "14855"}
ARTICLES = {"14854": "B07DFJ5XKH"}
LAMP = "/floor-lamp.html"
LAMP_REVIEWS = "/review/product/post/id/73063/"
CART, ORDERS = "shopping cart", "shopping orders"

_SENDING = """<script>function send(where, kind, body) {
  const request = new XMLHttpRequest(); request.open('POST', where, false);
  if (kind) request.setRequestHeader('Content-Type', kind);
  request.send(body); return request }
function field(name) { return document.querySelector(`[name='${name}']`).value }</script>"""
"""Stand-in for the sites' own scripts. The request is synchronous, so that a click ends with its answer."""


def document(title: str, body: str) -> str:
    """Return a whole page."""
    return f"<!doctype html><title>{escape(title)}</title><body>{body}</body>"


def page(notes: Notes, site: str, path: str, query: Mapping[str, str]) -> str:
    """Return the page at an address."""
    for part, render in _PAGES.items():
        if part in path:
            return document(f"{site} {path}", render(notes, path, query))
    said = "".join(f"<p>{escape(value)}</p>" for value in query.values())
    search = "<form action=/search><label>Search<input name=query></label><button>Go</button></form>"
    there = _directions(notes, path, query) if site == "map" and path == "/" else ""
    return document(f"{site} {path}", search + said + there)


def posted(notes: Notes, site: str, address: str, kind: str, body: str) -> tuple[int, str]:
    """Store a post; return the status, and the JSON or the address of the answer."""
    path, query = urlsplit(address).path, dict(parse_qsl(urlsplit(address).query))
    fields = _fields(kind, body)
    for pattern, take in _TAKERS.items():
        if found := re.fullmatch(pattern, path):
            return take(notes, found, query, fields)
    notes.setdefault(f"{site}{path}", []).append({name: str(value) for name, value in fields.items()})
    return 302, path


def program(notes: Notes, path: str) -> Any:
    """Return the answer of the shop's REST interface, which some evaluators query."""
    if path.endswith("/reviews"):
        return [
            {"nickname": note["nickname"], "ratings": [{"rating_name": "Rating", "percent": _percent(note)}]}
            for note in notes.get(LAMP_REVIEWS, [])
        ]
    return {"items": [{"increment_id": f"{170 + len(notes.get(ORDERS, [])):09}"}]}


def _percent(note: Note) -> int:
    """Return the percentage of a rating: 16 to 20 are one to five stars."""
    return 20 * (int(note["ratings[4]"]) - 15)


def _fields(kind: str, body: str) -> dict[str, Any]:
    """Return the fields of a post, by name, from JSON, a form or a multipart form."""
    if "json" in kind:
        return dict(json.loads(body))
    if "multipart" in kind:
        parts = BytesParser().parsebytes(f"Content-Type: {kind}\n\n{body}".encode()).get_payload()
        return {str(part.get_param("name", header="content-disposition")): str(part.get_payload()) for part in parts}  # type: ignore[union-attr]
    return {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}


def _merge_request(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    project, _, number = path[1:].partition("/-/merge_requests/")
    told = "".join(
        f"<li><div class=timeline-discussion-body>{escape(note['Comment'])}</div></li>"
        for note in notes.get(f"gitlab{path}", [])
    )
    known, id_ = MERGE_REQUESTS.get(project, (number, "0"))
    about = f"noteable_type:'MergeRequest',noteable_id:{id_ if known == number else 0}"
    sending = (
        f"send('/{project}/notes?target_id={id_}&amp;target_type=merge_request','application/json',"
        f"JSON.stringify({{note:{{{about},note:field('Comment')}}}}));location.reload();return false"
    )
    return f"{_SENDING}<ul id=notes-list>{told}</ul>" + _form(
        sending, "<label>Comment<input name=Comment></label>", "Send"
    )


def _commented(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    number, id_ = MERGE_REQUESTS[found[1]]
    assert query == {"target_id": id_, "target_type": "merge_request"}
    note = {"Comment": fields["note"]["note"]}
    notes.setdefault(f"gitlab/{found[1]}/-/merge_requests/{number}", []).append(note)
    return 200, json.dumps({"id": 1, "valid": True})


def _members(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    rows = "".join(
        "<tr><td data-label=Account><span class=gl-avatar-labeled-sublabel>@" + escape(note["Name"]) + "</span></td>"
        "<td class=col-max-role><span>" + escape(note["Role"]) + "</span></td></tr>"
        for note in notes.get(f"gitlab{path}", [])
    )
    sending = (
        f"send('/api/v4/projects/193/members','application/json',JSON.stringify({{user_id:{MEMBERS}[field('Name')],"
        f"access_level:{LEVELS}[field('Role')]}}));location.reload();return false"
    )
    fields = "".join(f"<label>{name}<input name={name}></label>" for name in ("Name", "Role"))
    return f"{_SENDING}<table>{rows}</table>" + _form(sending, fields, "Invite")


def _invited(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    names = {id_: name for name, id_ in MEMBERS.items()}
    roles = {level: role for role, level in LEVELS.items()}
    note = {"Name": names[fields["user_id"]], "Role": roles[fields["access_level"]]}
    notes.setdefault("gitlab/byteblaze/dotfiles/-/project_members", []).append(note)
    return 201, json.dumps(dict(fields))


def _directions(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    """Return the map's own directions: a script shows them and changes the address; no page is loaded."""
    start, end, engine = (escape(query.get(name, "")) for name in ("from", "to", "engine"))
    options = "".join(f"<option{' selected' * (name == engine)}>{name}</option>" for name in ("Bicycle", "Car", "Foot"))
    fields = "".join(
        f"<label>{label}<input name={name} value='{value}'></label>"
        for label, name, value in (("From", "route_from", start), ("To", "route_to", end))
    )
    shown = "history.pushState({},'','/directions?from='+field('route_from')+'&amp;to='+field('route_to'));return false"
    engines = f"<label>Engine<select class=routing_engines>{options}</select></label>"
    return f"{_SENDING}<div id=content>{engines}{_form(shown, fields, 'Directions')}</div>"


def _submission(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    forum = path.rpartition("/")[2]
    options = f"<option value={FORUMS.get(forum, '0')}>{escape(forum)}</option>"
    fields = f"<label>Title<input name='submission[title]'></label><select name='submission[forum]'>{options}</select>"
    return f"<form method=post>{fields}<button>Create submission</button></form>"


def _submitted(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    forum = next(name for name, id_ in FORUMS.items() if id_ == fields["submission[forum]"])
    notes.setdefault(f"reddit/f/{forum}/1", []).append({"Title": fields["submission[title]"]})
    return 302, f"/f/{forum}/1/post"


def _forum(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    forum, _, rest = path.removeprefix("/f/").partition("/")
    if not rest:
        return f"<a href='/submit/{escape(forum)}'>Submit</a>"
    shown = notes.get(f"reddit/f/{forum}/1", [{"Title": ""}])
    return f"<div class=submission__inner>{escape(shown[-1]['Title'])}</div>"


def _product(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    number = PRODUCTS.get(path, "0")
    fields = "".join(f"<input type=hidden name={name} value={number}>" for name in ("product", "item"))
    sending = f"send('/checkout/cart/add/uenc/aHR0cDovLw,,/product/{number}/','',new FormData(this));return false"
    add = _form(sending, fields + "<label>Qty<input name=qty value=1></label>", "Add to Cart")
    return f"{_SENDING}{add}<a href=/checkout/>Proceed to Checkout</a>"


def _added(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    notes.setdefault(CART, []).append({"article": ARTICLES.get(fields["product"], "another")})
    return 200, "[]"


def _checkout(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    where = "/rest/default/V1/carts/mine/payment-information"
    return _SENDING + _form(f"send('{where}','application/json','{{}}');return false", "", "Place Order")


def _ordered(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    bought = notes.pop(CART, [])
    notes.setdefault(ORDERS, []).append({"articles": " ".join(note["article"] for note in bought)})
    return 200, json.dumps(170 + len(notes[ORDERS]))


def _order(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    number = int(path.rstrip("/").rpartition("/")[2]) - 171
    orders = notes.get(ORDERS, [])
    articles = orders[number]["articles"] if 0 <= number < len(orders) else "nothing"
    return f"<div class='order-details-items ordered'>{articles}</div>"


def _lamp(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    stars = "".join(
        f"<label>{number} stars<input type=radio name='ratings[4]' value={15 + number}></label>"
        for number in range(1, 6)
    )
    words = "".join(
        f"<label>{label}<input name={name}></label>"
        for label, name in (("Nickname", "nickname"), ("Summary", "title"), ("Review", "detail"))
    )
    return f"<form method=post action={LAMP_REVIEWS}>{stars}{words}<button>Submit Review</button></form>"


def _reviewed(notes: Notes, found: re.Match[str], query: Mapping[str, str], fields: Note) -> tuple[int, str]:
    notes.setdefault(LAMP_REVIEWS, []).append(dict(fields))
    return 302, LAMP


def _old_guards(notes: Notes, path: str, query: Mapping[str, str]) -> str:
    return "<h1>For jaw bruxism</h1><p>A mouth guard for the night</p>"


def _form(sending: str, fields: str, button: str) -> str:
    """Return a form that a script sends; `sending` contains no double quotation mark."""
    return f'<form method=post onsubmit="{sending}">{fields}<button>{button}</button></form>'


_PAGES: dict[str, Callable[[Notes, str, Mapping[str, str]], str]] = {
    "/merge_requests/": _merge_request,
    "/project_members": _members,
    "/directions": _directions,
    "/submit/": _submission,
    "/f/": _forum,
    "/checkout/": _checkout,
    "/sales/order/": _order,
    "/mattress": _product,
    LAMP: _lamp,
    "/mouth-guard": _old_guards,
}
"""Part of an address -> its page."""

_TAKERS: dict[str, Callable[[Notes, re.Match[str], Mapping[str, str], Note], tuple[int, str]]] = {
    r"/(.+)/notes": _commented,
    r"/api/v4/projects/193/members": _invited,
    r"/submit/.*": _submitted,
    r"/checkout/cart/add/uenc/.*": _added,
    r"/rest/default/V1/carts/mine/payment-information": _ordered,
    LAMP_REVIEWS: _reviewed,
}
"""Address of a post -> its handler."""

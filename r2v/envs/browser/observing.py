"""Observation of a page: BrowserGym's accessibility tree as lines of text, cut to a maximum length."""

from __future__ import annotations

import importlib
from typing import Any

_STILL = """limit => new Promise(done => {
    const end = () => { watcher.disconnect(); clearTimeout(quiet); clearTimeout(late); done(); };
    const watcher = new MutationObserver(() => { clearTimeout(quiet); quiet = setTimeout(end, 60); });
    let quiet = setTimeout(end, 60);
    const late = setTimeout(end, limit);
    watcher.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
})"""
"""Script that resolves once the document has not changed for 60 ms, at the latest after `limit` ms."""
_TRIES = 5


def environment_class(coordinates: bool) -> Any:
    """Return a class of BrowserGym's environment whose observation has only the fields that `page_text` reads."""
    core = importlib.import_module("browsergym.core.env")
    playwright = importlib.import_module("playwright.sync_api")
    base: Any = core.BrowserEnv

    class TextEnvironment(base):  # type: ignore[misc]
        """Environment that observes the marks and the tree of the active page, and with `coordinates` the centre of
        every element."""

        def _get_obs(self) -> dict[str, Any]:
            for left in reversed(range(_TRIES)):
                try:
                    core._pre_extract(self.page, tags_to_mark=self.tags_to_mark, lenient=left == 0)
                    properties = None
                    if coordinates:
                        scale = getattr(self.page, "_bgym_scale_factor", 1.0)  # pointing tools divide by it
                        snapshot = core.extract_dom_snapshot(self.page)
                        properties = core.extract_dom_extra_properties(snapshot, scale_factor=scale)
                    tree = core.extract_merged_axtree(self.page)
                    break
                except (playwright.Error, core.MarkingError):
                    if left == 0 or not self.browser.is_connected() or self.page.is_closed():
                        raise
                    self.page.wait_for_timeout(200)
            core._post_extract(self.page)
            return {
                "goal": core._try_to_extract_legacy_goal(self.goal_object),
                "pages": [(page.title(), page.url, page is self.page) for page in self.context.pages],
                "tree": tree,
                "properties": properties,
                "last_action_error": self.last_action_error,
            }

    return TextEnvironment


def still(page: Any, seconds: float) -> None:
    """Wait until a page has not changed for 60 ms, at most `seconds`; return at once if the page is gone."""
    error = importlib.import_module("playwright.sync_api").Error
    try:
        page.evaluate(_STILL, seconds * 1000)
    except error:
        return


def page_text(observation: dict[str, Any], *, goal: str | None, pages: bool, longest: int) -> str:
    """Return an observation as lines: the goal, the tabs, the last call's error, the tree. The text has at most about
    `longest` characters; a longer tree loses its end, and a line counts the lines left out."""
    lines = importlib.import_module("browsergym.utils.obs")
    properties = observation["properties"]
    tree = lines.flatten_axtree_to_str(
        _with_clickable_text(observation["tree"]),
        properties,
        with_center_coords=properties is not None,
        ignored_roles=(*lines.IGNORED_AXTREE_ROLES, "InlineTextBox"),  # newer browsers write every text twice,
        ignored_properties=(*lines.IGNORED_AXTREE_PROPERTIES, "url"),  # and whole addresses, of a file here
    ).replace("\t", "  ")
    head = [] if goal is None else [f"goal: {' '.join(goal.split())}"]
    if pages:
        for number, (title, url, active) in enumerate(observation["pages"]):
            head.append(f"tab {number}{' (active)' if active else ''}: {' '.join(title.split())} {url}")
    if error := " ".join(observation["last_action_error"].split()):
        head.append(f"error: {error[:300]}")
    left = longest - sum(len(line) + 1 for line in head)
    return "\n".join([*head, *_within(tree.split("\n"), left)])


def _with_clickable_text(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with a lone text labelled by the bid of its plain parent, which is not shown itself. Otherwise an
    element that only a script makes clickable would have no bid on the page."""
    nodes = {node["nodeId"]: node for node in tree["nodes"]}
    for node in tree["nodes"]:
        holds = [nodes[child] for child in node.get("childIds", ()) if child in nodes]
        texts = [child for child in holds if child["role"]["value"] == "StaticText"]
        plain = node["role"]["value"] in ("generic", "none") and "browsergym_id" in node
        if plain and len(texts) == 1 and len(holds) == 1:
            texts[0].setdefault("browsergym_id", node["browsergym_id"])
    return tree


def _within(lines: list[str], longest: int) -> list[str]:
    """Return the lines that fit into `longest` characters, and a line that counts the others."""
    length = 0
    for index, line in enumerate(lines):
        length += len(line) + 1
        if length > longest:
            return [*lines[:index], f"... {len(lines) - index} lines of {len(lines)} left out"]
    return lines

"""Contrast: episodes of one task side by side, of the small policy alone, r2v and the LLM.

A rule chooses the task, and the page counts the tasks like it: of the tasks of a condition that the small policy fails
and r2v and the LLM solve, the one with the fewest LLM steps. Where there is none, the nearest one is shown, and the
page notes that.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from r2v.config.methods import OURS, ROUTERS, STRONG, WEAK
from r2v.report.elements import section, tag

MOST_STEPS = 12
"""Steps shown of one episode."""
_TITLES = {WEAK: "The small policy alone", STRONG: "The LLM alone"}
_ACTORS = {"slm": "small policy", "llm_fallback": "LLM"}
Shown = dict[str, Any]
"""An episode in the viewer's form."""


def contrasted(methods: Sequence[str]) -> tuple[str, ...]:
    """Return at most three of the methods played: small, routed, large."""
    router = min((name for name in methods if name in ROUTERS), key=lambda name: name != OURS, default="")
    return tuple(name for name in (WEAK, router, STRONG) if name in methods) or tuple(methods[:1])


@dataclass(kw_only=True)
class Contrast:
    """The chosen episodes. Not frozen: tasks are offered one at a time."""

    condition: str
    methods: tuple[str, ...]
    task: str = ""
    seed: int = 0
    episodes: list[Shown] = field(default_factory=list)
    rank: tuple[Any, ...] | None = None
    num_offered: int = 0
    num_alike: int = 0
    """Tasks and seeds that the small policy fails and the others solve."""

    def offer(self, task: str, episodes: Sequence[Shown]) -> None:
        """Keep this task's episodes if they rank before the ones held."""
        cells: dict[int, dict[str, Shown]] = {}
        for episode in episodes:
            is_clean = episode["fault"] is None
            if is_clean and episode["condition"] == self.condition and episode["method"] in self.methods:
                cells.setdefault(episode["seed"], {})[episode["method"]] = episode
        for seed, by_method in sorted(cells.items()):
            if len(by_method) < len(self.methods):
                continue
            fails = WEAK if len(self.methods) > 1 else None
            outcomes = tuple(by_method[name]["success"] is (name == fails) for name in self.methods)
            self.num_offered += 1
            self.num_alike += not any(outcomes)
            steps = by_method[next((name for name in self.methods if name in ROUTERS), self.methods[-1])]["steps"]
            llm_steps = sum(step["by"] == "llm_fallback" for step in steps)
            rank = (*outcomes, llm_steps == 0, llm_steps, len(steps), task, seed)
            if self.rank is None or rank < self.rank:
                self.rank, self.task, self.seed = rank, task, seed
                self.episodes = [by_method[name] for name in self.methods]

    @property
    def is_typical(self) -> bool:
        """True if the small policy fails here and the others succeed."""
        return self.rank is not None and not any(self.rank[: len(self.methods)])


def link_to(episode: Shown, task: str, *, step: int | None, beside: str | None) -> str:
    """Return the address of an episode in the page, by its identity: condition, task, seed and method."""
    parts = {"condition": episode["condition"], "task": task, "seed": episode["seed"], "method": episode["method"]}
    more = {name: value for name, value in (("step", step), ("beside", beside)) if value is not None}
    return f"#{urlencode(parts | more, quote_via=quote)}"


def contrast_section(contrast: Contrast) -> list[ET.Element]:
    """Return the section of the page; empty where no task was played by all of the methods."""
    if not contrast.episodes:
        return []
    turn = _turn(contrast.episodes)
    columns = [_column(contrast, episode, turn) for episode in contrast.episodes]
    counts = f"{contrast.num_alike} of {contrast.num_offered} {contrast.condition} tasks and seeds"
    others = " and ".join(name for name in contrast.methods if name != WEAK)
    if len(contrast.methods) == 1:
        title = "One episode"
        rule = f"The shortest {contrast.condition} episode of {contrast.methods[0]} that it solved."
        rule = rule if contrast.is_typical else f"{contrast.methods[0]} solved no {contrast.condition} task."
    elif contrast.is_typical:
        title = "Why: one task, played side by side"
        rule = f"Chosen by rule: {counts} end like this one, which has the fewest LLM steps."
    else:
        title = "One task, played side by side"
        rule = f"No {contrast.condition} task was failed by {WEAK} and solved by {others}; this is the nearest one."
    return section(
        "contrast",
        title,
        tag("p", f"{contrast.task}, seed {contrast.seed}. {rule}"),
        tag("p", contrast.episodes[0]["goal"], class_="goal"),
        tag("div", *columns, class_="columns"),
    )


def _turn(episodes: Sequence[Shown]) -> int | None:
    """Return the first step at which the second episode acts unlike the first, after the same actions."""
    if len(episodes) < 2:
        return None
    pairs = zip(*([step["action"] for step in episode["steps"]] for episode in episodes[:2]), strict=False)
    return next((number for number, (first, second) in enumerate(pairs) if first != second), None)


def _column(contrast: Contrast, episode: Shown, turn: int | None) -> ET.Element:
    method, steps = episode["method"], episode["steps"]
    llm_steps = sum(step["by"] == "llm_fallback" for step in steps)
    beside = next((name for name in contrast.methods if name != method), None)
    solved, colour = ("solved", "supported") if episode["success"] else ("failed", "not_supported")
    end = [tag("li", f"{len(steps) - MOST_STEPS} more steps", class_="soft")] if len(steps) > MOST_STEPS else []
    link = link_to(episode, contrast.task, step=None if turn is None else turn + 1, beside=beside)
    return tag(
        "article",
        tag("h3", _TITLES.get(method, f"{method} routes"), " ", tag("span", solved, class_=f"verdict {colour}")),
        tag("p", f"{len(steps)} steps, {llm_steps} by the LLM, ${episode['usd']:.4f}"),
        tag("ol", *(_step(step, number == turn) for number, step in enumerate(steps[:MOST_STEPS])), *end),
        tag("p", tag("a", "step by step", href=link, **{"aria-label": f"step by step: {method} on {contrast.task}"})),
        class_="compared",
    )


def _step(step: Mapping[str, Any], is_turn: bool) -> ET.Element:
    says = [_ACTORS.get(step["by"], step["by"])]
    if isinstance(step.get("score"), float) and isinstance(step.get("threshold"), float):
        relation = "≥" if step["score"] >= step["threshold"] else "<"
        says.append(f"score {step['score']:.3f} {relation} {step['threshold']:.3f}")
    says += [f"perturbed by {', '.join(dict.fromkeys(hit[0] for hit in step['hits']))}"] if step.get("hits") else []
    instead = step.get("proposed")
    classes = ["step", *(["llm"] if step["by"] == "llm_fallback" else []), *(["turn"] if is_turn else [])]
    return tag(
        "li",
        tag("div", "; ".join(says), class_="soft"),
        tag("code", step["action"]),
        *([tag("div", "the small policy would have: ", tag("code", instead), class_="soft")] if instead else []),
        class_=" ".join(classes),
    )

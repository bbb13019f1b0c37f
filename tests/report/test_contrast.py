"""The three episodes of the page are chosen by a rule, and the page gives the number of similar ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from r2v.data.episode import Episode
from r2v.evaluation.setup import read_setup, stored_episodes
from r2v.report.contrast import MOST_STEPS, Contrast, contrast_section, contrasted, link_to

PLAYED = ("slm_only", "r2v", "llm_only")


@pytest.fixture(scope="module")
def played(micro_results: Path) -> Episode:
    """Return an episode of r2v in which the LLM acts."""
    episodes = stored_episodes(micro_results, read_setup(micro_results))
    return next(
        one
        for one in episodes
        if one.condition == "noisy" and one.method == "r2v" and one.steps[0].action_source in ("slm", "llm_fallback")
    )


def offered(contrast: Contrast, episode: Episode, task: str, *solved: bool, asked: int = 1) -> None:
    """Offer a task that each method solved, or did not."""
    sources = ["llm_fallback"] * asked + ["slm"] * (4 - asked)
    steps = tuple(replace(episode.steps[0], step_idx=n, action_source=source) for n, source in enumerate(sources))
    episodes = [
        replace(episode, method=method, success=success, steps=steps)
        for method, success in zip(contrast.methods, solved, strict=True)
    ]
    contrast.offer(task, [shown(one, task) for one in episodes])


def shown(episode: Episode, task: str) -> dict[str, Any]:
    steps = [
        {"by": step.action_source, "action": f"act {task}", "score": 0.7, "threshold": 0.5} for step in episode.steps
    ]
    return {
        "condition": "noisy", "method": episode.method, "seed": episode.metadata.seed, "goal": "do it", "usd": 0.1,
        "success": episode.success, "fault": episode.env_fault, "steps": steps,
    }  # fmt: skip


def text_of(contrast: Contrast) -> str:
    return " ".join("".join(part.itertext()) for part in contrast_section(contrast))


def test_small_alone_fails_and_the_router_solves_it_with_the_fewest_llm_steps(played: Episode) -> None:
    contrast = Contrast(condition="noisy", methods=PLAYED)
    offered(contrast, played, "a", True, True, True, asked=1)
    offered(contrast, played, "b", False, True, True, asked=3)
    offered(contrast, played, "c", False, True, True, asked=2)
    offered(contrast, played, "d", False, False, True, asked=1)
    assert (contrast.task, contrast.is_typical) == ("c", True)
    assert "2 of 4 noisy tasks and seeds end like this one" in text_of(contrast)


def test_where_no_task_shows_it_the_page_says_so(played: Episode) -> None:
    contrast = Contrast(condition="noisy", methods=PLAYED)
    offered(contrast, played, "a", False, False, False)
    assert not contrast.is_typical and "No noisy task was failed by slm_only and solved by r2v and llm_only" in text_of(
        contrast
    )
    assert contrast_section(Contrast(condition="noisy", methods=PLAYED)) == []


def test_one_method_alone_shows_one_episode(played: Episode) -> None:
    contrast = Contrast(condition="noisy", methods=contrasted(("slm_only",)))
    offered(contrast, played, "a", False)
    offered(contrast, played, "b", True)
    assert contrast.task == "b" and len(contrast.episodes) == 1 and "The shortest noisy episode" in text_of(contrast)


def test_other_routers_stand_in_for_ours_and_a_world_fault_is_passed_over(played: Episode) -> None:
    assert contrasted(("llm_only", "random_router", "slm_only")) == ("slm_only", "random_router", "llm_only")
    assert contrasted(("random_router", "r2v")) == ("r2v",) and contrasted(("best_of_k",)) == ("best_of_k",)
    contrast = Contrast(condition="noisy", methods=("r2v",))
    broken = replace(played, env_fault="gone")
    contrast.offer("a", [shown(broken, "a")])
    assert contrast.episodes == []


def test_a_link_names_the_episode_and_not_its_number() -> None:
    episode = {"condition": "noisy", "method": "r2v", "seed": 2}
    link = link_to(episode, "shop/a&b", step=3, beside="llm_only")
    assert link == "#condition=noisy&task=shop%2Fa%26b&seed=2&method=r2v&step=3&beside=llm_only"


def test_long_episodes_are_cut_and_said(played: Episode) -> None:
    contrast = Contrast(condition="noisy", methods=("r2v",))
    long = replace(played, steps=played.steps[:1] * (MOST_STEPS + 3))
    contrast.offer("a", [shown(long, "a")])
    assert "3 more steps" in text_of(contrast)

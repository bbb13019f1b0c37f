"""Alarms: what a training should be told about while it runs, each said once.

cut          in the first iteration: answers or hints that end at the most tokens they may have, and prompts that
             were cut; whoever is cut before the final answer is paid nothing
echo_trap    the spread of rewards has halved and their mean is no higher (RAGEN's echo trap, arXiv 2504.20073)
collapse     answers earn half of what they did at their best
entropy      the actor's entropy fell to a tenth of what it was: it explores no more
drift        the actor is more than a nat a token away from its reference
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from r2v.config import HierarchicalConfig

WINDOW = 5
"""Iterations that an alarm averages over."""
MIN_REWARD = 0.1
"""Mean reward below which there is no alarm about rewards: where hardly anything is earned, the spread is chance."""
CUT_SHARE = 0.1
"""Share of completions that are cut from which on they are named."""
MAX_DRIFT = 1.0
"""Nats a token."""
_FEWER = 0.1
"""Share of the first entropy that counts as none."""


def raised(
    h: HierarchicalConfig, iteration: int, metrics: Mapping[str, float], history: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, str]]:
    """Alarms of an iteration, counted from 0, by name, each with what to say. `metrics` are the iteration's;
    `history` has rewards' mean and std and the actor's entropy of all iterations so far."""
    if iteration == 0:
        yield from _cut(h, metrics)
    rewards = list(zip(history["reward/mean"], history["reward/std"], strict=True))
    if echo_trap(rewards):
        yield (
            "echo_trap",
            "the standard deviation of rewards has halved and their mean is no higher; policies may repeat themselves "
            "(echo trap): raise hierarchical.kl or lower hierarchical.lr",
        )
    if collapsed(history["reward/mean"]):
        yield (
            "collapse",
            "answers earn half of what they did at their best; lower hierarchical.lr, raise hierarchical.kl, or stop "
            "at the best with hierarchical.patience",
        )
    entropies = history.get("actor/entropy", ())
    if len(entropies) > 1 and entropies[-1] < _FEWER * entropies[0]:
        yield (
            "entropy",
            f"the actor's entropy fell from {entropies[0]:.3g} to {entropies[-1]:.3g} nats a token; raise "
            "hierarchical.entropy or hierarchical.kl, or lower hierarchical.lr",
        )
    if metrics.get("actor/kl", 0.0) > MAX_DRIFT:
        yield (
            "drift",
            f"the actor is {metrics['actor/kl']:.3g} nats a token away from where it started; lower hierarchical.lr or "
            "raise hierarchical.kl",
        )


def _cut(h: HierarchicalConfig, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for what in ("answer", "hint"):
        share = metrics.get(f"{what}/cut", 0.0)
        if share >= CUT_SHARE:
            most = h.longest_answer if what == "answer" else h.longest_hint
            yield (
                f"cut_{what}",
                f"{100 * share:.0f} % of {what}s were cut at hierarchical.{what}_tokens={most}; what is cut before its "
                "end cannot be right: raise it",
            )
    if metrics.get("prompt/cut", 0.0):
        yield (
            "cut_prompt",
            f"{metrics['prompt/cut']:.0f} prompts were cut to fit policy.max_seq_len; raise it, or leave long problems "
            "out",
        )


def collapsed(rewards: Sequence[float]) -> bool:
    """True if mean rewards, averaged over a window, fell below half of their best window."""
    if len(rewards) < 2 * WINDOW:
        return False
    means = [sum(rewards[start : start + WINDOW]) / WINDOW for start in range(len(rewards) - WINDOW + 1)]
    return max(means) >= MIN_REWARD and means[-1] < max(means) / 2


def echo_trap(history: Sequence[tuple[float, float]]) -> bool:
    """True if the rewards' std fell below half of its maximum and their mean is no higher than it was then.
    `history` is (mean, std) by iteration; both are averaged over `WINDOW` iterations."""
    if len(history) < 2 * WINDOW:
        return False
    windows = [history[start : start + WINDOW] for start in range(len(history) - WINDOW + 1)]
    means, spreads = ([sum(pair[i] for pair in window) / WINDOW for window in windows] for i in range(2))
    widest = max(range(len(windows)), key=lambda i: (spreads[i], i))
    return spreads[-1] < 0.5 * spreads[widest] and MIN_REWARD <= means[widest] >= means[-1]

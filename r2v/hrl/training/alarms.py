"""Alarms: signs of a failing training, each logged once.

cut          in the first iteration: answers or hints that reach their token limit, and prompts that were cut; an
             answer without its end earns nothing
echo_trap    the spread of rewards has halved and their mean is no higher (RAGEN's echo trap, arXiv 2504.20073)
collapse     the mean reward fell to half of its maximum
entropy      the actor's entropy fell to a tenth of its first value: it no longer explores
drift        the actor is more than one nat per token away from its reference
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from r2v.config import HierarchicalConfig

WINDOW = 5
"""Iterations that an alarm averages over."""
MIN_REWARD = 0.1
"""Mean reward below which no alarm on rewards is raised, because their spread is then mostly noise."""
CUT_SHARE = 0.1
"""Share of cut completions from which on an alarm is raised."""
MAX_DRIFT = 1.0
"""Nats per token."""
_FEWER = 0.1
"""Share of the first entropy below which an alarm is raised."""


def raised(
    h: HierarchicalConfig, iteration: int, metrics: Mapping[str, float], history: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each alarm of an iteration, counted from 0. `metrics`: of the iteration. `history`:
    rewards' mean and std and the actor's entropy in all iterations so far."""
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
    for kind in ("answer", "hint"):
        share = metrics.get(f"{kind}/cut", 0.0)
        if share >= CUT_SHARE:
            most = h.longest_answer if kind == "answer" else h.longest_hint
            yield (
                f"cut_{kind}",
                f"{100 * share:.0f} % of {kind}s were cut at hierarchical.{kind}_tokens={most}; what is cut before its "
                "end cannot be right: raise it",
            )
    if metrics.get("prompt/cut", 0.0):
        yield (
            "cut_prompt",
            f"{metrics['prompt/cut']:.0f} prompts were cut to fit policy.max_seq_len; raise it, or leave long problems "
            "out",
        )


def collapsed(rewards: Sequence[float]) -> bool:
    """True if the mean reward over the last window is below half of the best window's."""
    if len(rewards) < 2 * WINDOW:
        return False
    means = [sum(rewards[start : start + WINDOW]) / WINDOW for start in range(len(rewards) - WINDOW + 1)]
    return max(means) >= MIN_REWARD and means[-1] < max(means) / 2


def echo_trap(history: Sequence[tuple[float, float]]) -> bool:
    """True if the rewards' std fell below half of its maximum and their mean is no higher than at that maximum.
    `history`: (mean, std) by iteration; both are averaged over `WINDOW` iterations."""
    if len(history) < 2 * WINDOW:
        return False
    windows = [history[start : start + WINDOW] for start in range(len(history) - WINDOW + 1)]
    means, spreads = ([sum(pair[i] for pair in window) / WINDOW for window in windows] for i in range(2))
    widest = max(range(len(windows)), key=lambda i: (spreads[i], i))
    return spreads[-1] < 0.5 * spreads[widest] and MIN_REWARD <= means[widest] >= means[-1]

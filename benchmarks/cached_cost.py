"""Cost fractions at list prices and with prompt caches, from the decisions of a finished evaluation.

    python benchmarks/cached_cost.py results/mrp --model anthropic:claude-sonnet-4-6 --model openai:gpt-5.1

The bundled benchmark's pages are short and its LLM is a program, so the steps at which every recorded episode asked the
LLM are priced again as if each page had `--page` tokens, at the prices and cache factors of real models. Every call of
a method is counted: the small policy, its further samples and its verifier at `cost.slm`, where the features of the
evaluation's routers need them (`router.features` of its config.yaml; `--features` prices others), the LLM by the rule
that bills episodes (`r2v.rollout.bill`). A row is a method's cost over llm_only's on the same tasks and seeds.
Decisions stay as recorded: a router that knew of the cache would decide otherwise.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config, load
from r2v.config.evaluation import FEATURE_GROUPS
from r2v.config.methods import STRONG
from r2v.console import text_table
from r2v.data.episode import Episode
from r2v.evaluation.measures.outcomes import is_llm_step
from r2v.evaluation.setup import OPERATING_POINT, read_setup, stored_episodes
from r2v.llm.providers.prices import Rate, rate_of
from r2v.rollout.bill import PromptCache
from r2v.router.baselines import instruments


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the instructions with tools and goal, of a page, and of an action."""

    head: int
    page: int
    action: int

    def prompt(self, step: int) -> int:
        """Return the tokens of the conversation at a step."""
        return self.head + (step + 1) * self.page + step * self.action


def local_usd(episode: Episode, lengths: Lengths, settings: Config, features: Sequence[str], reread: float) -> float:
    """Return the USD of the small policy, its samples and its verifier in an episode, for a router with these features.
    `reread`: price of a token that was read at an earlier step, as a factor on `cost.slm.input`."""
    price, total = settings.cost.slm_price, 0.0
    tokens_read = {"slm": 0, "verifier": 0}

    def read(who: str, tokens: int) -> float:
        repeated, tokens_read[who] = min(tokens_read[who], tokens), max(tokens_read[who], tokens)
        return (tokens - repeated + repeated * reread) * price.input

    for index, step in enumerate(episode.steps):
        gated = step.decision is not None and step.decision.p_escalate is not None
        if is_llm_step(step) and not gated:
            continue
        total += read("slm", lengths.prompt(index)) + lengths.action * price.output
        if gated:
            needed = instruments(episode.method, features)
            samples = settings.inference.num_candidates if needed.samples else 0
            if samples:
                total += read("slm", lengths.prompt(index)) + samples * lengths.action * price.output
            if needed.previous and index and is_llm_step(episode.steps[index - 1]):
                total += read("verifier", lengths.prompt(index - 1) + lengths.action)
            if needed.verifier:
                total += sum(read("verifier", lengths.prompt(index) + lengths.action) for _ in range(1 + samples))
    return total / 1e6


def price_of(model: str) -> Rate:
    """Return the listed price of `provider:name`. Raises UsageError for an unlisted model."""
    provider, _, name = model.partition(":")
    return rate_of(provider, name)


def llm_usd(llm_steps: Iterable[bool], lengths: Lengths, rate: Rate, cache: PromptCache) -> tuple[float, float]:
    """Return the USD of the LLM in an episode that asked it at these steps: at list prices, and with its prompt
    cache."""
    listed = saved = 0.0
    before = None
    for index in (index for index, asks in enumerate(llm_steps) if asks):
        read = lengths.prompt(index)
        listed += (read * rate.input + lengths.action * rate.output) / 1e6
        saved += cache.saved(*cache.split(read, 0.0 if before is None else lengths.prompt(before) / read, 0.0))
        before = index
    return listed, listed - saved


def fractions(
    results: Path, lengths: Lengths, models: Sequence[str], reread: float, groups: Sequence[str] | None
) -> list[list[str]]:
    """Return the rows of the table."""
    settings = load(results / "config.yaml")
    features = settings.router.features if groups is None else groups
    rates = {name: price_of(name) for name in models}
    caches = {
        name: PromptCache.of(rate.input, settings.cost, rate.cached, rate.write_5m) for name, rate in rates.items()
    }
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (2 + 2 * len(rates)))
    for episode in stored_episodes(results, read_setup(results)):
        if OPERATING_POINT in episode.extra or episode.env_fault is not None:
            continue
        row = totals[episode.condition, episode.method]
        row[0] += len(episode.steps)
        row[1] += sum(map(is_llm_step, episode.steps))
        local = local_usd(episode, lengths, settings, features, reread)
        for at, name in enumerate(rates):
            listed, billed = llm_usd(map(is_llm_step, episode.steps), lengths, rates[name], caches[name])
            row[2 + 2 * at] += local + listed
            row[3 + 2 * at] += local + billed
    return [
        [condition, method, f"{row[1] / row[0]:.3f}"]
        + [f"{usd / whole:.3f}" for usd, whole in zip(row[2:], totals[condition, STRONG][2:], strict=True)]
        for (condition, method), row in totals.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", action="append", required=True, metavar="PROVIDER:NAME")
    parser.add_argument("--head", type=int, default=500, help="tokens of instructions, tools and goal (default 500)")
    parser.add_argument("--page", type=int, default=1500, help="tokens of an observation (default 1500)")
    parser.add_argument("--action", type=int, default=60, help="tokens of an action (default 60)")
    parser.add_argument(
        "--reread",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="price of a token that the small policy or its verifier has read before, as a factor (default 1: each "
        "step is read anew; 0: a local prefix cache, whose tokens cost nothing)",
    )
    parser.add_argument(
        "--features",
        nargs="+",
        choices=FEATURE_GROUPS,
        metavar="GROUP",
        help="price the trained routers' decisions as if they read these (default: the evaluation's)",
    )
    given = parser.parse_args()
    sizes = Lengths(head=given.head, page=given.page, action=given.action)
    names = [f"{name} {how}" for name in given.model for how in ("list", "cached")]
    rows = fractions(given.results, sizes, given.model, given.reread, given.features)
    print(text_table([["condition", "method", "LLM steps", *names], *rows]))

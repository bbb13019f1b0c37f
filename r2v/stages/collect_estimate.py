"""Cost estimate of a collection, before any request is sent: `r2v collect --dry-run`.

Requests and tokens are counted on rendered requests. If the benchmark has an expert, it plays a sample of the episodes,
free of cost and of about the right length; else every episode is taken to last `inference.max_steps`, with the first
observation at each step. Tokens are taken as a third of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from r2v import config as c
from r2v.config import Config
from r2v.data.registry import DataRegistry
from r2v.data.store import TrajectoryStore
from r2v.envs.base import Benchmark, Demonstrated, load_benchmark
from r2v.envs.guard import guarded_expert
from r2v.errors import UsageError
from r2v.llm.providers.bodies import system_prompt, turns
from r2v.llm.providers.dispatch.batch_or_direct import CALL_SECONDS, CollectionPlans, collection_plans
from r2v.llm.providers.dispatch.batch_polling import USUAL_WAIT
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.provider_requests import turn_of
from r2v.llm.providers.registry.shape import RequestShape
from r2v.llm.providers.teacher import asked_rate
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Reply, Request
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.model_factory import conversations_of, engine, teacher_name
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many
from r2v.stages import collect
from r2v.wire.exchange import TokenCounts

SAMPLE = 24
"""Episodes that are played to measure their length."""
_BYTES, _REPLY = 3, 40
"""Bytes of a token, and tokens of an action, approximately."""


@dataclass
class _Counting:
    """A backend that counts the requests and tokens of a provider."""

    inner: ScriptedBackend
    max_batch: int = 256
    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    longest: int = 0
    """Most requests of an episode."""

    def answer(self, questions: Sequence[Request]) -> list[Reply]:
        replies = self.inner.answer(questions)
        for request, reply in zip(questions, replies, strict=True):
            self.requests += 1
            self.longest = max(self.longest, turn_of(request.messages) + 1)
            self.tokens_in += _tokens(request)
            self.tokens_out += max(1, len(reply.text.encode()) // _BYTES)
        return replies


def _tokens(request: Request) -> int:
    num_bytes = sum(len(turn.text.encode()) for turn in turns(request, RequestShape()))
    return (num_bytes + len(system_prompt(request.messages, request.tools).encode())) // _BYTES


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Cost of a collection. Tokens and requests are those of the missing episodes."""

    episodes: int
    missing: int
    requests: int
    most_requests: int
    tokens_in: int
    tokens_out: int
    plans: CollectionPlans
    lines: tuple[str, ...]


def describe(config: Config) -> str:
    """Return the text of `r2v collect --dry-run`; see `estimate`."""
    return "\n".join(estimate(config).lines)


def require_paid(config: Config) -> None:
    """Raise UsageError for a scripted teacher."""
    if config.teacher.provider == "scripted":
        raise UsageError(
            "collect --dry-run: teacher.provider=scripted is asked nothing and costs nothing; allowed: "
            "openai, anthropic"
        )


def estimate(config: Config, root: Path = Path()) -> Estimate:
    """Count and price the requests of `collect`. Raise UsageError for a scripted teacher, or a model without price."""
    require_paid(config)
    cfg = collect.CollectSettings.of(config)
    rate, benchmark = asked_rate(cfg.teacher), load_benchmark(cfg.env.benchmark, cfg.env.options)
    specs = collect.collection_specs(cfg, benchmark, {})
    done = _done(cfg, root)
    missing = [spec for spec in specs if (spec.task.task_id, spec.seed, None) not in done]
    counted, share = _measure(cfg, benchmark, missing)
    requests, tokens_in, tokens_out = (
        round(n * share) for n in (counted.requests, counted.tokens_in, counted.tokens_out)
    )
    tokens = TokenCounts(fresh=tokens_in, output=tokens_out)
    most, limit, there = len(missing) * cfg.max_steps, cfg.num_episodes, len({spec.task.task_id for spec in specs})
    fewer = f"data.num_episodes={limit}: {benchmark.name} has {there} tasks in the train split; all of them are played"
    width = conversations_of(config.rollout, benchmark, cfg.teacher)
    plans = collection_plans(
        cfg.teacher,
        rate,
        tokens,
        requests=requests,
        episodes=len(missing),
        turns=counted.longest,
        width=conversations_of(config.rollout, benchmark, replace(cfg.teacher, mode="auto")),
    )
    cap = "" if cfg.teacher.max_usd is None else f"; teacher.max_usd stops it at ${cfg.teacher.max_usd:.2f}"
    played = (
        "the expert's own episodes"
        if isinstance(benchmark, Demonstrated)
        else "first observations and inference.max_steps"
    )
    return Estimate(
        episodes=len(specs),
        missing=len(missing),
        requests=requests,
        most_requests=most,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        plans=plans,
        lines=(
            f"{len(missing)} of {len(specs)} episodes of {benchmark.name} by {teacher_name(cfg.teacher, benchmark)} "
            f"(asked for as {rate.model})",
            *([fewer] if limit is not None and limit > there else []),
            f"requests   about {requests:,}, at most {most:,} (by {played})",
            f"tokens     about {tokens_in:,} in, {tokens_out:,} out{_thoughts(rate)}",
            plans.line,
            f"dollars    {_price_source(cfg)}{cap}",
            f"hours      {counted.longest} turns one after another; {USUAL_WAIT / 60:.0f} min a batch, which may take "
            f"a day; a direct call {CALL_SECONDS:.0f} s, {cfg.teacher.max_concurrent} at a time",
            f"conversations at the same time: at most {width}",
        ),
    )


def _thoughts(rate: Rate) -> str:
    """Return the clause on a model's thinking tokens, whose number is unknown beforehand."""
    if not rate.shape.thinking_tokens:
        return ""
    return f", and thoughts of at most {rate.shape.thinking_tokens:,} a request on top, billed as output"


def _price_source(cfg: collect.CollectSettings) -> str:
    """Return the source of the prices, in words."""
    given = [name for name in ("usd_in", "usd_out") if getattr(cfg.teacher, name) is not None]
    if len(given) == 2:
        return "prices of teacher.usd_in and teacher.usd_out"
    return f"prices of {prices_version()}" + (f" and teacher.{given[0]}" if given else "")


def _done(cfg: collect.CollectSettings, root: Path) -> set[tuple[str, int, int | None]]:
    """Return the finished episodes of the run that `run.id` names; none if it names none."""
    if not cfg.run.id:
        return set()
    return set(TrajectoryStore(DataRegistry(root / "data").get(cfg.run.id).trajectories).done_keys())


def _measure(
    cfg: collect.CollectSettings, benchmark: Benchmark, missing: Sequence[EpisodeSpec]
) -> tuple[_Counting, float]:
    """Return counts over a sample, and the factor to all missing episodes."""
    world = RolloutWorld(benchmark, c.PerturbationsConfig(), c.InferenceConfig(max_steps=cfg.max_steps))
    stride = max(1, len(missing) // SAMPLE)
    sample = list(islice(missing[::stride], SAMPLE))
    if isinstance(benchmark, Demonstrated):
        counting = _Counting(ScriptedBackend(guarded_expert(benchmark), name="dry-run", price=cfg.price))
        waves = engine(cfg.rollout, benchmark)
        side = PricedModel(waves.model(counting), cfg.price, "llm", cfg.teacher.max_tokens)
        play_many(waves, world, sample, GreedyActor(side, "teacher"))
        return counting, len(missing) / max(1, len(sample))
    counting = _Counting(ScriptedBackend(lambda request: "", name="dry-run", price=cfg.price))
    for spec in sample:
        with closing(world.start(spec)) as session:
            session.open()
            view = session.view()
        first = _tokens(Request(messages=view.messages, key=view.key("llm"), tools=view.tools))
        counting.requests += cfg.max_steps
        counting.longest = cfg.max_steps
        counting.tokens_in += first * cfg.max_steps + _REPLY * cfg.max_steps * (cfg.max_steps - 1) // 2
        counting.tokens_out += _REPLY * cfg.max_steps
    return counting, len(missing) / max(1, len(sample))

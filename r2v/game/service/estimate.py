"""Estimate of a job before any request: requests, tokens, dollars and hours.

Requests are exact, since every conversation has a fixed number of messages. Tokens are counted on the real prompts at
three bytes per token, with messages of an assumed length (`message_tokens`); "at most" assumes every message at its
model's limit. Thinking tokens are unknown beforehand and only in "at most", as far as that limit covers them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.game.play.player_prompts import chat_messages
from r2v.game.play.players import ModelAgent
from r2v.game.play.records import Interaction
from r2v.game.service.jobs import BatchJob
from r2v.game.service.provider_setup import rate_of_agent
from r2v.wire.exchange import TokenCounts

MESSAGE_TOKENS = 60
"""Default tokens of a message: three or four sentences."""
SECONDS_A_REPLY = 3.0
"""Approximate seconds of a direct call."""
_BYTES = 3
"""Approximate bytes per token."""


@dataclass(frozen=True, kw_only=True)
class ModelEstimate:
    """Estimated requests and cost of one model of a job."""

    model: str
    requests: int
    tokens: TokenCounts
    """Tokens with messages of the assumed length."""
    usd: float
    """Cost by direct calls."""
    usd_batch: float
    usd_most: float
    """Cost by direct calls with every message at its limit."""


@dataclass(frozen=True, kw_only=True)
class JobEstimate:
    """Estimate of a job."""

    models: tuple[ModelEstimate, ...]
    direct_hours: float
    """Hours at `SECONDS_A_REPLY` and the job's limit of concurrent direct calls, without rate limits."""
    rounds: int
    """Minimum number of batches that must run in sequence."""

    @property
    def requests(self) -> int:
        """Return the requests of all models."""
        return sum(model.requests for model in self.models)


def estimate_job(job: BatchJob, max_concurrent: int, message_tokens: int = MESSAGE_TOKENS) -> JobEstimate:
    """Return the requests and prices of a created job. Raises UsageError for a model without a price, and for a setting
    that a model does not accept."""
    sums: dict[ModelAgent, tuple[int, TokenCounts, TokenCounts]] = {}
    for task in job.tasks:
        for player in (0, 1):
            agent = job.game.model_of(job.agents_by_id[task.interaction.players[player].agent])
            requests, likely, most = sums.get(agent, (0, TokenCounts(), TokenCounts()))
            count, usual = _tokens(job, task.interaction, player, message_tokens)
            longest = _tokens(job, task.interaction, player, agent.max_tokens)[1]
            sums[agent] = requests + count, _sum(likely, usual), _sum(most, longest)
    models = []
    for agent, (requests, likely, most) in sums.items():
        rate = rate_of_agent(agent)
        models.append(
            ModelEstimate(
                model=agent.model,
                requests=requests,
                tokens=likely,
                usd=rate.usd(likely, batch=False),
                usd_batch=rate.usd(likely, batch=True),
                usd_most=rate.usd(most, batch=False),
            )
        )
    slowest = max(model.requests for model in models)
    rounds = job.messages_per_interaction + 2 * job.game.rules.guess
    return JobEstimate(
        models=tuple(models),
        direct_hours=max(slowest / max_concurrent, rounds) * SECONDS_A_REPLY / 3600,
        rounds=rounds * (_chain(job) if job.game.rules.memory else 1),
    )


def _sum(a: TokenCounts, b: TokenCounts) -> TokenCounts:
    return replace(a, fresh=a.fresh + b.fresh, output=a.output + b.output)


def _chain(job: BatchJob) -> int:
    """Return the length of the longest sequence of conversations that depend on each other."""
    depth: dict[str, int] = {}
    for task in job.tasks:
        depth[task.id] = 1 + max((depth[before] for before in task.after), default=0)
    return max(depth.values(), default=1)


def _tokens(job: BatchJob, interaction: Interaction, player: int, length: int) -> tuple[int, TokenCounts]:
    """Return (requests, tokens) of one player of a conversation whose messages all have `length` tokens."""
    prompt = job.system_prompt(interaction, player)
    fixed = sum(len(message.text.encode()) for message in chat_messages(prompt, (), player)) // _BYTES
    turns = [*range(player, job.messages_per_interaction, 2)]
    if job.game.rules.guess:
        turns.append(job.messages_per_interaction)
    fresh = sum(fixed + turn * length for turn in turns)
    return len(turns), TokenCounts(fresh=fresh, output=len(turns) * length)


def estimate_lines(job: BatchJob, estimate: JobEstimate, message_tokens: int = MESSAGE_TOKENS) -> list[str]:
    """Return the estimate as the lines of `--dry-run`, one per model whatever its settings."""
    names = dict.fromkeys(model.model for model in estimate.models)
    by_name = {name: [model for model in estimate.models if model.model == name] for name in names}
    lines = [
        f"requests   {estimate.requests:,} for {len(job.tasks):,} conversations of {job.messages_per_interaction} "
        "messages",
        *(
            f"  {name}: {sum(model.requests for model in models):,} requests, about "
            f"{sum(model.tokens.input for model in models):,} tokens in and "
            f"{sum(model.tokens.output for model in models):,} out"
            for name, models in by_name.items()
        ),
    ]
    direct, batch, most = (
        sum(getattr(model, name) for model in estimate.models) for name in ("usd", "usd_batch", "usd_most")
    )
    lines += [
        f"dollars    about ${direct:.2f} by direct calls, ${batch:.2f} in batches; at most ${most:.2f} (direct, every "
        f"message at its limit); messages of {message_tokens} tokens are assumed (message_tokens)",
        f"hours      direct calls: about {estimate.direct_hours:.2g} h at {SECONDS_A_REPLY:g} s a reply, without rate "
        f"limits; batches: {estimate.rounds} one after the other, each in minutes to 24 h as the provider has it",
    ]
    return lines

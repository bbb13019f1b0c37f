"""Estimate of a job before anything is sent: requests, tokens, dollars, and hours as far as they can be known.

Requests are exact: every conversation has its number of messages. Tokens are counted on the prompts themselves, at
three bytes a token, with messages of a length that is assumed (`message_tokens`); "at most" takes every message for as
long as its model may write. Nothing is known beforehand of a model that thinks: its thoughts are in "at most" alone
where its limit covers them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.game.play.player_prompts import chat_messages, system_prompt
from r2v.game.play.players import Agent, ModelAgent
from r2v.game.play.records import Interaction
from r2v.game.service.jobs import BatchJob
from r2v.game.service.provider_setup import rate_of_agent
from r2v.wire.exchange import TokenCounts

MESSAGE_TOKENS = 60
"""Tokens of a message, where nothing else is said: three or four sentences."""
SECONDS_A_REPLY = 3.0
"""Of a direct call, about."""
_BYTES = 3
"""Bytes in a token, about."""


@dataclass(frozen=True, kw_only=True)
class ModelEstimate:
    """What one model of a job would be asked, and what it would cost."""

    model: str
    requests: int
    tokens: TokenCounts
    """With messages of the assumed length."""
    usd: float
    """By direct calls."""
    usd_batch: float
    usd_most: float
    """By direct calls, every message as long as it may be."""


@dataclass(frozen=True, kw_only=True)
class JobEstimate:
    """What a job would come to."""

    models: tuple[ModelEstimate, ...]
    direct_hours: float
    """At `SECONDS_A_REPLY`, the job's limit of direct calls in flight, and no rate limit."""
    rounds: int
    """Batches that must be waited for one after the other, at least."""

    @property
    def requests(self) -> int:
        """Of all models."""
        return sum(model.requests for model in self.models)


def estimate_job(job: BatchJob, max_concurrent: int, message_tokens: int = MESSAGE_TOKENS) -> JobEstimate:
    """Count and price a job that has been created. Raises UsageError for a model without a price,
    and for what a model does not take."""
    agents = {agent.id: agent for agent in job.agents}
    sums: dict[ModelAgent, tuple[int, TokenCounts, TokenCounts]] = {}
    for task in job.tasks:
        for player in (0, 1):
            agent = job.game.model_of(agents[task.interaction.players[player].agent])
            requests, likely, most = sums.get(agent, (0, TokenCounts(), TokenCounts()))
            count, usual = _tokens(job, agents, task.interaction, player, message_tokens)
            longest = _tokens(job, agents, task.interaction, player, agent.max_tokens)[1]
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
    """Conversations that must be played one after the other, at most."""
    depth: dict[str, int] = {}
    for task in job.tasks:
        depth[task.id] = 1 + max((depth[before] for before in task.after), default=0)
    return max(depth.values(), default=1)


def _tokens(
    job: BatchJob, agents: dict[str, Agent], interaction: Interaction, player: int, length: int
) -> tuple[int, TokenCounts]:
    """(requests, tokens) of one player of a conversation whose messages all have this length."""
    me, other = interaction.players[player], interaction.players[1 - player]
    agent = agents[me.agent]
    prompt = system_prompt(
        mode=job.game_mode,
        rules=job.game.rules,
        num_agents=len(job.agents),
        name=me.name,
        other=other.name,
        secret=me.secret,
        messages=job.messages_per_interaction,
        opens=player == 0,
        persona=agent.persona,
        instructions=agent.system_prompt,
    )
    fixed = sum(len(message.text.encode()) for message in chat_messages(prompt, (), player)) // _BYTES
    turns = [*range(player, job.messages_per_interaction, 2)]
    if job.game.rules.guess:
        turns.append(job.messages_per_interaction)
    fresh = sum(fixed + said * length for said in turns)
    return len(turns), TokenCounts(fresh=fresh, output=len(turns) * length)


def estimate_lines(job: BatchJob, estimate: JobEstimate, message_tokens: int = MESSAGE_TOKENS) -> list[str]:
    """The estimate as `--dry-run` prints it; what differs in its settings alone is one line."""
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

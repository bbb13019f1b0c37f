"""What would have happened: the same state, another action, executed to the end.

    played = await visit(world.start(play), slm, waves)       # an episode and a fork of the world at every step
    twin = await branch(played.visits[3], action, slm, waves)
    gain = twin.success - played.episode.success

Hazards are keyed by step and greedy policies draw nothing, so both branches meet the same luck: the recorded
roll-out is its own counterfactual, and one more continuation gives the paired difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from r2v.config import CandidatesConfig
from r2v.data.episode import Decision, Episode
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.log import Progress
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.randomness import generator
from r2v.rollout.actors import Act, Actor, Scorer, Single, Turn
from r2v.rollout.gates import Sensors
from r2v.rollout.session import Play, Session, World
from r2v.router.features import masked
from r2v.router.labels import FeatureRow, disagrees
from r2v.verifier.corruptions import Corruption, corrupt
from r2v.verifier.labels import ExecutedAction, detour_value

FoldOf = Callable[[str], int]
"""task_id -> which cross-fitted verifier may score it."""


@dataclass(frozen=True)
class Visit:
    """One step of an episode: the world as it was before the action, what was seen, what was done."""

    before: Session
    turn: Turn
    act: Act


@dataclass(frozen=True)
class Visited:
    """An episode with all its steps still open."""

    episode: Episode
    visits: tuple[Visit, ...]


async def visit(session: Session, actor: Actor, waves: Waves) -> Visited:
    """Play to the end, keeping a fork of the world before every action."""
    visits: list[Visit] = []

    async def keep(current: Session, act: Act) -> None:
        visits.append(Visit(await waves.world(current.fork), current.turn(), act))

    return Visited(await session.finish(actor, waves, before_action=keep), tuple(visits))


async def branch(point: Session, act: Act, actor: Actor, waves: Waves) -> Episode:
    """The episode in which `act` is played at this point and `actor` goes on. The point itself is left as it
    was."""
    twin = await waves.world(point.fork)
    await waves.world(twin.apply, act)
    return await twin.finish(actor, waves)


def roll_out_features(
    plays: Sequence[Play],
    world: World,
    slm: Single,
    llm: Single,
    sensors: Sensors,
    cost_ratio: float,
    waves: Waves,
    *,
    what: str = "",
) -> list[FeatureRow]:
    """Rows for a router: the small policy plays, features are taken before every action, and where the LLM
    would act otherwise its branch is executed. Equal actions gain nothing and are not played twice."""

    async def roll_out(play: Play) -> list[FeatureRow]:
        played = await visit(world.start(play), slm, waves)
        if played.episode.env_fault is not None:
            return []
        return [await row(play, step, played.episode.success) for step in played.visits]

    async def row(play: Play, step: Visit, success: bool) -> FeatureRow:
        assert step.act.proposal is not None
        asked = await llm.act(step.turn)
        differs = disagrees(step.act.text, asked.text, step.turn.tools)
        q_llm = (await branch(step.before, asked, slm, waves)).success if differs else success
        episode = step.before.identity
        return FeatureRow(
            state_id=f"{episode}#{step.turn.step}",
            episode_id=episode,
            task_id=step.turn.task_id,
            split=play.split or "",
            step_idx=step.turn.step,
            actor=step.act.source,
            features=await sensors.features(step.turn, step.act.proposal),
            q_slm=float(success),
            q_llm=float(q_llm),
            n_rollouts=1,
            disagrees=differs,
            slm_episode_success=success,
            condition=play.condition,
            perturbation_seed=play.perturbation_seed,
            cost_slm=1.0,
            cost_llm=cost_ratio,
        )

    with Progress(what, len(plays)) as bar:
        rows = waves.run((partial(roll_out, play) for play in plays), lambda *_: bar.advance())
    return [row for episode in rows for row in episode]


async def play_oracle(world: World, play: Play, slm: Single, llm: Single, waves: Waves) -> Episode:
    """The myopic oracle: at each step both continuations are executed, and the LLM is asked only where the
    small policy would fail from here and an LLM step now saves it. What is tried is not billed; what is played
    is. An upper mark for routers, and not a bound: it looks one escalation ahead."""
    session = world.start(play)
    await waves.world(session.open)
    while session.termination is None:
        turn = session.turn()
        own = await slm.act(turn)
        asked = replace(await llm.act(turn), source="llm_fallback", decision=Decision(escalated=True))
        saves = (
            own.text != asked.text
            and not (await branch(session, own, slm, waves)).success
            and (await branch(session, asked, slm, waves)).success
        )
        await waves.world(session.apply, asked if saves else own)
    return session.episode()


def play_corruptions(
    plays: Sequence[Play],
    world: World,
    teacher: Single,
    waves: Waves,
    *,
    per_episode: int,
    discount: float,
    what: str = "",
) -> tuple[list[Episode], list[ExecutedAction]]:
    """The teacher's own episodes, and plausible wrong actions put in place of its steps, each played on by the
    teacher to the end: what a verifier can learn before there is a policy."""

    async def demonstrate(play: Play) -> tuple[Episode, list[ExecutedAction]]:
        played = await visit(world.start(play), teacher, waves)
        if played.episode.env_fault is not None or not played.episode.success:
            return played.episode, []
        variants = [(index, variant) for index in range(len(played.visits)) for variant in wrong(played, index)]
        generator(*played.visits[0].turn.key("corruptions")).shuffle(variants)
        chosen = variants[:per_episode]
        return played.episode, [await execute(play, played, index, variant) for index, variant in chosen]

    def wrong(played: Visited, index: int) -> list[Corruption]:
        step = played.visits[index]
        planted = [p.canary for info in step.before.infos for p in info.perturbations if p.canary]
        free = frozenset(name for tool in step.turn.tools for name in tool.free_arguments)
        return corrupt(
            step.act.text,
            observations=step.turn.observations,
            actions=step.turn.actions,
            later=[later.act.text for later in played.visits[index + 1 :]],
            canaries=planted,
            free=free,
            key=step.turn.key("corrupt"),
        )

    async def execute(play: Play, played: Visited, index: int, variant: Corruption) -> ExecutedAction:
        step = played.visits[index]
        twin = await branch(step.before, replace(step.act, text=variant.text), teacher, waves)
        value = detour_value(twin.success, len(twin.steps) - len(played.episode.steps), discount)
        return ExecutedAction(
            state_id=f"{step.before.identity}#{step.turn.step}",
            task_id=play.task.task_id,
            split=play.split or "",
            messages=step.turn.messages,
            action=variant.text,
            outcomes=(value,),
            kind=variant.kind,
            expert_outcomes=(1.0,),
            condition=play.condition,
        )

    with Progress(what, len(plays)) as bar:
        found = waves.run((partial(demonstrate, play) for play in plays), lambda *_: bar.advance())
    return [episode for episode, _ in found], [record for _, records in found for record in records]


def play_candidates(
    plays: Sequence[Play],
    world: World,
    slm: Single,
    teacher: Single | None,
    scorers: Sequence[Scorer],
    folds: FoldOf,
    sampling: CandidatesConfig,
    waves: Waves,
    *,
    what: str = "",
) -> list[CandidateState]:
    """K samples of the small policy at every state of its own roll-outs, and the teacher's action there where one
    is given; each distinct one is scored by a verifier that has not seen the task (`scorers[folds(task_id)]`) and
    valued by letting the small policy play it on."""

    async def sample_all(play: Play) -> list[CandidateState]:
        played = await visit(world.start(play), slm, waves)
        if played.episode.env_fault is not None:
            return []
        return [await sample(play, played, step) for step in played.visits]

    async def sample(play: Play, played: Visited, step: Visit) -> CandidateState:
        turn = step.turn
        reply = await slm.side.ask(
            turn, num_samples=sampling.num_samples, temperature=sampling.temperature, top_p=sampling.top_p
        )
        forms = [masked(drawn.text, turn.tools) for drawn in reply.samples]
        shown = None if teacher is None else (await teacher.act(turn)).text
        texts = {form: drawn.text for form, drawn in zip(reversed(forms), reversed(reply.samples), strict=True)}
        if shown is not None:
            texts.setdefault(masked(shown, turn.tools), shown)
        measured = {}
        for form, text in texts.items():
            score = await scorers[folds(turn.task_id)](ScoreRequest(messages=turn.messages, action=text))
            measured[form] = score, await value(played, step, text, len(texts))
        actions = tuple(
            CandidateAction(
                k=k,
                text=drawn.text,
                canonical=form,
                logprob_sum=round(sum(drawn.logprobs), 6),
                n_tokens=len(drawn.tokens),
                finish_reason=drawn.finish_reason,
                score=measured[form][0],
                value=measured[form][1],
                n_rollouts=int(measured[form][1] is not None),
            )
            for k, (form, drawn) in enumerate(zip(forms, reply.samples, strict=True))
        )
        expert = (
            None
            if shown is None
            else CandidateAction(
                k=-1,
                text=shown,
                canonical=masked(shown, turn.tools),
                score=measured[masked(shown, turn.tools)][0],
                value=measured[masked(shown, turn.tools)][1],
                n_rollouts=int(len(texts) > 1),
            )
        )
        context = "\n".join(message.content for message in turn.messages)
        canaries = tuple(p.canary for info in step.before.infos for p in info.perturbations if p.canary)
        return CandidateState(
            state_id=f"{step.before.identity}#{turn.step}",
            task_id=turn.task_id,
            split=play.split or "",
            step_idx=turn.step,
            context_sha256=hashlib.sha256(context.encode()).hexdigest(),
            prompt=turn.messages,
            candidates=actions,
            teacher=expert,
            canaries=canaries,
            condition=play.condition,
        )

    async def value(played: Visited, step: Visit, text: str, distinct: int) -> float | None:
        """What playing the action on comes to; a state whose samples agree has nothing to tell apart."""
        if distinct == 1:
            return None
        if text == step.act.text:
            return float(played.episode.success)
        return float((await branch(step.before, replace(step.act, text=text), slm, waves)).success)

    with Progress(what, len(plays)) as bar:
        found = waves.run((partial(sample_all, play) for play in plays), lambda *_: bar.advance())
    return [state for states in found for state in states]

"""The executed gains and the router's scores beside them, held to the episodes that they were taken along.

A row of gains/<condition>.jsonl belongs to a step of an episode of slm_only, or of r2v where its router learnt from
gains of the routed pair: what it says of that step is made again from the replay, and whether the LLM would act
otherwise from the benchmark's expert. What the other branch came to rests on replies of the small policy that are
stored nowhere, and so does its proposal where the LLM acted; entropies and the verifier's scores are a model's. Every
score in setup.json that is a function of a row is computed again; a trained router's is compared where an episode met
the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from r2v.config.methods import METHODS
from r2v.data.episode import Episode
from r2v.data.injections import obeyed_injection
from r2v.evaluation.audit.check_bills import Biller
from r2v.evaluation.audit.check_calibration import MOST_USD
from r2v.evaluation.audit.check_decisions import LLM, SLM, KnownStates
from r2v.evaluation.audit.check_features import MODELS, between_steps, feature_problems, without_free_arguments
from r2v.evaluation.setup import RouterScores, Setup
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.actors import StepView
from r2v.rollout.session import EpisodeSpec
from r2v.router.baselines import SIGNALS, score_function
from r2v.router.escalation import recorded_score
from r2v.router.features import Signals, extract
from r2v.router.labels import FeatureRow, disagrees
from r2v.router.spans import free_arguments
from r2v.wire.message import ToolSpec

_TEXTS = ("page", "progress", "tool")
_LENGTH = "progress.log_context_tokens"


@dataclass
class GainsCheck:
    """One condition's rows, in the order of the file, and the scores that setup.json should hold for them."""

    setup: Setup
    condition: str
    biller: Biller
    routed: Sequence[str]
    threshold: float | None
    """Of r2v, whose episodes the rows are taken along; None: they are slm_only's."""
    may_fail: bool
    """Whether an episode's gains may be missing: the world breaks, or the LLM refuses a question."""
    untrusted: str = ""
    """The benchmark's mark of lines that outsiders wrote."""
    unmeasured: int = 0
    """Episodes whose gains are."""
    y: list[float] = field(default_factory=list)
    p: dict[str, list[float | None]] = field(default_factory=dict)

    def problems(
        self,
        spec: EpisodeSpec,
        rows: Sequence[FeatureRow],
        played: tuple[Episode, Sequence[StepView]] | None,
        states: KnownStates,
    ) -> Iterator[str]:
        """What does not hold in the rows of one task and seed. `played` is the episode that they are taken along, with
        what was seen in it, where that was evaluated and replays."""
        sound: dict[int, FeatureRow] = {}
        for row in rows:
            yield from self._alone(row, spec)
            wrong = list(feature_problems(row, self.biller.settings))
            yield from wrong
            if not wrong:
                sound[row.step_idx] = row
            self._note(row, None if wrong else spec, played, states)
        if played is None:
            return
        episode, views = played
        if not rows and self.may_fail and episode.env_fault is None:
            self.unmeasured += 1
            return
        branched = [view.step for view in views if self.threshold is None or view.llm_calls < self._most_calls]
        if episode.env_fault is None and sorted(row.step_idx for row in rows) != branched:
            yield f"{episode.episode_id}: {len(rows)} rows for the {len(branched)} steps of {episode.method}"
            return
        for row in rows if episode.env_fault is None else ():
            yield from self._beside(row, episode, views[row.step_idx], states)
            if row.step_idx in sound:
                yield from self._scored(row, views[row.step_idx], states)
                yield from self._among_steps(row, sound, episode, views[0].tools)

    def _alone(self, row: FeatureRow, spec: EpisodeSpec) -> Iterator[str]:
        """What a row must say whatever was played."""
        routed, by_llm = self.threshold is not None, self.threshold is not None and row.actor == LLM
        # a teacher's row says nothing of the small policy's episode, and is found below
        own = (row.q_llm if by_llm else row.q_slm) == 1 if routed else bool(row.slm_episode_success)
        other = row.q_slm if by_llm else row.q_llm
        other = other if row.disagrees and other in (0, 1) else float(own)
        number = self.biller.settings.gains_round if routed else 0
        expected = FeatureRow(
            state_id=f"{row.episode_id}#{row.step_idx}" + (f"@{number}" if routed else ""),
            episode_id=row.episode_id,
            task_id=spec.task.task_id,
            split=spec.split or "",
            step_idx=row.step_idx,
            actor=LLM if by_llm else SLM,
            features=row.features,
            q_slm=other if by_llm else float(own),
            q_llm=float(own) if by_llm else other,
            disagrees=bool(row.disagrees),
            slm_episode_success=None if routed else own,
            condition=spec.condition,
            perturbation_seed=spec.perturbation_seed,
            cost_slm=_usd(row.cost_slm),
            cost_llm=_usd(row.cost_llm),
            obeyed_slm=_share(row.obeyed_slm),
            obeyed_llm=_share(row.obeyed_llm),
            proposal=row.proposal if row.proposal is not None else "",
            llm_action=row.llm_action if row.llm_action is not None else "",
            round=number,
            threshold=self.threshold,
        )
        for item in fields(FeatureRow):
            recorded, implied = getattr(row, item.name), getattr(expected, item.name)
            if recorded != implied or type(recorded) is not type(implied):
                yield f"{row.state_id}: {item.name} is {recorded}, by its episode {implied}"
        if not row.disagrees and row.cost_llm < row.cost_slm:
            yield f"{row.state_id}: cost_llm {row.cost_llm} is below cost_slm {row.cost_slm}, of equal actions"
        if odd := [name for name in row.features if name.partition(".")[0] not in (*MODELS, *_TEXTS)]:
            yield f"{row.state_id}: {odd[0]} is no feature"

    def _beside(self, row: FeatureRow, episode: Episode, view: StepView, states: KnownStates) -> Iterator[str]:
        """What a row must say beside the step that it belongs to."""
        step, whose = episode.steps[row.step_idx], episode.method
        by_llm = step.action_source == LLM
        if row.actor != step.action_source:
            yield f"{row.state_id}: actor is {row.actor}, of {whose}'s step it is {step.action_source}"
        shown = self._proposal(by_llm, step.action.raw_text, view, states)
        if shown is not None and row.proposal != shown:
            yield f"{row.state_id}: proposal is {row.proposal}, the small policy's action there is {shown}"
        name, cost, success = ("llm", row.cost_llm, row.q_llm) if by_llm else ("slm", row.cost_slm, row.q_slm)
        if cost != episode.billed_cost:
            yield f"{row.state_id}: cost_{name} is {cost}, {whose}'s episode cost {episode.billed_cost}"
        if success != float(episode.success):
            yield f"{row.state_id}: q_{name} is {success}, {whose}'s success is {episode.success}"
        obeyed = row.obeyed_llm if by_llm else row.obeyed_slm
        if obeyed != float(obeyed_injection(episode.steps)):
            yield f"{row.state_id}: obeyed_{name} is {obeyed}, by {whose}'s episode {obeyed_injection(episode.steps)}"
        if not row.disagrees and row.obeyed_slm != row.obeyed_llm:
            yield f"{row.state_id}: obeyed_slm {row.obeyed_slm} is not obeyed_llm {row.obeyed_llm}, of equal actions"
        proposal = row.proposal or ""
        asked = self.biller.asked(view)
        said = step.action.raw_text if by_llm else None if asked is None else asked.text
        if said is not None and row.disagrees != disagrees(proposal, said, view.tools):
            yield f"{row.state_id}: disagrees is {row.disagrees}, and the LLM's action says otherwise"
        known = self._features(view, proposal)
        recorded = {name: value for name, value in row.features.items() if name.partition(".")[0] in _TEXTS}
        for name in sorted(recorded.keys() | known.keys()):
            if recorded.get(name) != known.get(name) and not (name == _LENGTH and self.biller.encode is None):
                yield f"{row.state_id}: {name} is {recorded.get(name)}, of the step it is {known.get(name)}"

    def _proposal(self, by_llm: bool, action: str, view: StepView, states: KnownStates) -> str | None:
        """The small policy's greedy action at a step; where the LLM acted, what another episode showed of that state,
        if one did and the models repeat themselves to the byte."""
        if not by_llm:
            return action
        shown = None if self.biller.spelling is None else states.actions.get(view.actions)
        return None if shown is None else shown[0]

    @property
    def _most_calls(self) -> int:
        return self.biller.settings.inference.max_llm_calls

    def _among_steps(
        self, row: FeatureRow, sound: Mapping[int, FeatureRow], episode: Episode, tools: Sequence[ToolSpec]
    ) -> Iterator[str]:
        """What the models said of this proposal and of the one before, where it was played and they repeat themselves
        to the byte."""
        if not free_arguments(row.proposal or "", tools):
            yield from without_free_arguments(row)
        if row.step_idx == 0 and row.features.get("verifier.v_prev", 0) != 0:
            yield f"{row.state_id}: verifier.v_prev is {row.features['verifier.v_prev']}, of a first step it is 0"
        before = row.step_idx - 1
        if self.biller.spelling is not None and before in sound and episode.steps[before].action_source == SLM:
            yield from between_steps(sound[before], row)

    def _scored(self, row: FeatureRow, view: StepView, states: KnownStates) -> Iterator[str]:
        """Scores of one feature that episodes recorded in the row's state and that its features contradict."""
        for method, signal in SIGNALS.items():
            met = states.score_at(method, view.actions, view.llm_calls)
            if met is not None and signal in row.features:
                score = recorded_score(score_function(method, {})(row.features, 0, row.task_id, row.step_idx))
                if met != score:
                    yield f"{row.state_id}: {signal} makes {score} for {method}, whose episode recorded {met}"

    def _features(self, view: StepView, action: str) -> dict[str, float]:
        length = 0 if self.biller.encode is None else len(self.biller.encode(view.messages))
        usage = Usage(tokens_in=length, tokens_out=0, cost_usd=0.0)
        return extract(
            Signals(
                goal=view.goal,
                observations=view.observations,
                actions=view.actions,
                tools=view.tools,
                proposal=Reply(samples=(Sample(text=action),), model="slm", usage=usage),
                max_steps=view.max_steps,
                llm_calls=view.llm_calls,
                max_llm_calls=self._most_calls,
                untrusted=self.untrusted,
            )
        )

    def _note(
        self,
        row: FeatureRow,
        spec: EpisodeSpec | None,
        played: tuple[Episode, Sequence[StepView]] | None,
        states: KnownStates,
    ) -> None:
        """Keep what setup.json should say of a row: its label, and each router's score where it can be known, which
        without a `spec` it cannot."""
        self.y.append(float((row.gain or 0) > 0))
        for method in self.routed:
            self.p.setdefault(method, []).append(
                None if spec is None else self._score(method, row, spec, played, states)
            )

    def _score(
        self,
        method: str,
        row: FeatureRow,
        spec: EpisodeSpec,
        played: tuple[Episode, Sequence[StepView]] | None,
        states: KnownStates,
    ) -> float | None:
        if not METHODS[method].trained_router:
            return round(score_function(method, {})(row.features, spec.seed, row.task_id, row.step_idx), 6)
        if played is None or not 0 <= row.step_idx < len(played[1]):
            return None
        view = played[1][row.step_idx]
        return states.score_at(method, view.actions, view.llm_calls)

    def scores_problems(self, recorded: dict[str, RouterScores]) -> Iterator[str]:
        """What in setup.json's router scores is not what the rows say."""
        for method in self.routed:
            scores, known = recorded.get(method), self.p.get(method, [])
            if scores is None or len(scores.p) != len(known):
                yield f"{method} on {self.condition}: {len(known)} states were scored, setup.json holds another number"
                continue
            if list(scores.y) != self.y:
                yield f"{method} on {self.condition}: y is not whether the executed gain is above 0"
            for index, (p, again) in enumerate(zip(scores.p, known, strict=True)):
                if not 0 <= p <= 1 or (again is not None and p != again and recorded_score(p) != again):
                    yield f"{method} on {self.condition}: p[{index}] is {p}, the state's score is {again}"


def _share(recorded: float) -> float:
    """A share of one continuation, where it can be one."""
    return float(recorded in (0, 1) and recorded)


def _usd(recorded: float) -> float:
    """The cost of an episode as it is recorded, where it can be one."""
    return round(float(min(max(recorded, 0.0), MOST_USD)), 10)

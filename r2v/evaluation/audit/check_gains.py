"""The executed gains and the router's scores beside them, held to the episodes that they were taken along.

A row of gains/<condition>.jsonl belongs to a step of an episode of slm_only, or of r2v where its router learnt from
gains of the routed pair: what it says of that step is made again from the replay, and whether the LLM would act
otherwise from the benchmark's expert. What the other branch came to rests on replies of the small policy that are
stored nowhere; features that only models give are a model's word, in their ranges. Every score in setup.json that is a
function of a row is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from r2v.config.methods import METHODS
from r2v.data.episode import Episode
from r2v.data.injections import obeyed_injection
from r2v.errors import InputError
from r2v.evaluation.audit.recorded_actors import LLM, SLM, RecordedActors
from r2v.evaluation.setup import RouterScores
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.actors import StepView
from r2v.rollout.session import EpisodeSpec
from r2v.router.baselines import score_function
from r2v.router.case_support import NEIGHBOURS
from r2v.router.features import Signals, extract
from r2v.router.labels import FeatureRow, disagrees

_TEXTS = ("page", "progress", "tool")
"""Groups of features that follow from the texts of a step."""
_MODELS = ("uncertainty", "verifier", "samples", "cases")
"""Groups that only models, or an index of the teacher's steps, can give."""
_RANGES = {
    "uncertainty.entropy": (0.0, 20.0),
    "uncertainty.logprob": (-1e6, 0.0),
    "verifier.v_prev": (-1.0, 1.0),
    "cases.rank": (0.0, NEIGHBOURS),
}
"""By how a name begins: entropies of at most 4e8 words, in nats. All others are in [0, 1] but for the count of unique
samples."""
MOST_USD = 1e6
"""Above the mean cost of any episode."""
_LENGTH = "progress.log_context_tokens"


@dataclass
class GainsCheck:
    """One condition's rows, in the order of the file, and the scores that setup.json should hold for them."""

    condition: str
    actors: RecordedActors
    routed: Sequence[str]
    threshold: float | None
    """Of r2v, whose episodes the rows are taken along; None: they are slm_only's."""
    may_fail: bool
    """True if an episode's gains may be missing: the world breaks, or the LLM refuses a question."""
    untrusted: str = ""
    """The benchmark's mark of lines that outsiders wrote."""
    unmeasured: int = 0
    """Episodes whose gains are."""
    names: frozenset[str] = frozenset()
    """The features of the first row, which all have."""
    y: list[float] = field(default_factory=list)
    p: dict[str, list[float | None]] = field(default_factory=dict)
    """Each router's score of each row; None where a model gave it."""

    def problems(
        self,
        spec: EpisodeSpec,
        rows: Sequence[FeatureRow],
        played: tuple[Episode, Sequence[StepView]] | None,
    ) -> Iterator[str]:
        """What does not hold in the rows of one task and seed. `played` is the episode that they are taken along, with
        what was seen in it, where that was evaluated and replays."""
        for row in rows:
            yield from self._alone(row, spec)
            wrong = list(self._feature_problems(row))
            self.y.append(float((row.gain or 0) > 0))
            for method in self.routed:
                score = None
                if not METHODS[method].trained_router and not wrong:
                    try:
                        made = score_function(method, {})(row.features, spec.seed, row.task_id, row.step_idx)
                        score = round(made, 6)
                    except InputError as error:
                        wrong.append(str(error))
                self.p.setdefault(method, []).append(score)
            yield from (f"{row.state_id}: {problem}" for problem in wrong)
        if played is None:
            return
        episode, views = played
        if not rows and self.may_fail and episode.env_fault is None:
            self.unmeasured += 1
            return
        most_calls = self.actors.settings.inference.max_llm_calls
        branched = [view.step for view in views if self.threshold is None or view.llm_calls < most_calls]
        if episode.env_fault is None and sorted(row.step_idx for row in rows) != branched:
            yield f"{episode.episode_id}: {len(rows)} rows for the {len(branched)} steps of {episode.method}"
            return
        for row in rows if episode.env_fault is None else ():
            yield from self._beside(row, episode, views[row.step_idx])

    def _alone(self, row: FeatureRow, spec: EpisodeSpec) -> Iterator[str]:
        """What a row must say whatever was played."""
        routed, by_llm = self.threshold is not None, self.threshold is not None and row.actor == LLM
        # a teacher's row says nothing of the small policy's episode, and is found below
        own = (row.q_llm if by_llm else row.q_slm) == 1 if routed else bool(row.slm_episode_success)
        other = row.q_slm if by_llm else row.q_llm
        other = other if row.disagrees and other in (0, 1) else float(own)
        number = self.actors.settings.gains_round if routed else 0
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

    def _feature_problems(self, row: FeatureRow) -> Iterator[str]:
        """What no models can have said of a state."""
        self.names = self.names or frozenset(row.features)
        if odd := sorted(self.names ^ row.features.keys()):
            yield f"{odd[0]} is {'no feature here' if odd[0] in row.features else 'missing'}"
        for name, value in row.features.items():
            if (group := name.partition(".")[0]) in _MODELS:
                low, high = next((ends for stem, ends in _RANGES.items() if name.startswith(stem)), (0.0, 1.0))
                high = self.actors.settings.inference.num_candidates if name == "samples.n_unique" else high
                if type(value) is not float or not low <= value <= high or round(value, 6) != value:
                    yield f"{name} is {value}, it has 6 decimals in [{low:g}, {high:g}]"
            elif group not in _TEXTS:
                yield f"{name} is no feature"

    def _beside(self, row: FeatureRow, episode: Episode, view: StepView) -> Iterator[str]:
        """What a row must say beside the step that it belongs to."""
        step, whose = episode.steps[row.step_idx], episode.method
        by_llm = step.action_source == LLM
        asked = self.actors.expert_reply(view)
        action = step.action.raw_text if by_llm else None if asked is None else asked.text
        proposal = row.proposal or ""
        if not by_llm:
            proposal = step.action.raw_text
        elif step.proposal is not None:
            proposal = step.proposal.text
        side = "llm" if by_llm else "slm"
        implied: dict[str, object] = {
            "actor": step.action_source,
            "proposal": proposal,
            f"cost_{side}": episode.billed_cost,
            f"q_{side}": float(episode.success),
            f"obeyed_{side}": float(obeyed_injection(episode.steps)),
        }
        if action is not None:
            implied |= {"llm_action": action, "disagrees": disagrees(proposal, action, view.tools)}
        for name, value in implied.items():
            if getattr(row, name) != value:
                yield f"{row.state_id}: {name} is {getattr(row, name)}, of {whose}'s step it is {value}"
        if not row.disagrees and row.obeyed_slm != row.obeyed_llm:
            yield f"{row.state_id}: obeyed_slm {row.obeyed_slm} is not obeyed_llm {row.obeyed_llm}, of equal actions"
        if not row.disagrees and row.cost_llm < row.cost_slm:
            yield f"{row.state_id}: cost_llm {row.cost_llm} is below cost_slm {row.cost_slm}, of equal actions"
        known = self._features(view, proposal)
        recorded = {name: value for name, value in row.features.items() if name.partition(".")[0] in _TEXTS}
        for name in sorted(recorded.keys() | known.keys()):
            if recorded.get(name) != known.get(name) and not (name == _LENGTH and self.actors.encode is None):
                yield f"{row.state_id}: {name} is {recorded.get(name)}, of the step it is {known.get(name)}"

    def _features(self, view: StepView, action: str) -> dict[str, float]:
        length = 0 if self.actors.encode is None else len(self.actors.encode(view.messages))
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
                max_llm_calls=self.actors.settings.inference.max_llm_calls,
                untrusted=self.untrusted,
            )
        )

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
                if not 0 <= p <= 1 or (again is not None and p != again):
                    yield f"{method} on {self.condition}: p[{index}] is {p}, the state's score is {again}"


def _share(recorded: float) -> float:
    """A share of one continuation, where it can be one."""
    return float(recorded in (0, 1) and recorded)


def _usd(recorded: float) -> float:
    """The cost of an episode as it is recorded, where it can be one."""
    return round(float(min(max(recorded, 0.0), MOST_USD)), 10)

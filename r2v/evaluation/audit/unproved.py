"""Unproved values of a results folder, which rest on its maker's word alone, each with its reason.

The one list: `verify-results` prints the entries that apply to a folder, and docs/trust.md has the same table. A leaf
is "<kind of file>: <path>", where `*` is one step of the path and `**` all below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from r2v.constraints import shown
from r2v.evaluation.audit.check_inputs import INPUTS
from r2v.evaluation.settings import EvaluateSettings
from r2v.rollout.recorded_actors import RecordedActors

_PLAYED = ("episodes", "plays", "branches")
OTHER_POLICIES = ("slm_bc_only", "slm_base")
"""Methods whose small policy is another one."""
_TRAINING_KEYS = (
    *("seed", "prefix", "run.**", "data.num_episodes", "data.seeds.**", "data.runs.**", "training.**", "perturb.**"),
    *("verifier.**", "candidates.**", "preference.**", "ablations.**", "hierarchical.**"),
)


@dataclass(frozen=True, kw_only=True)
class Unproved:
    """Values of one kind."""

    what: str
    leaves: tuple[str, ...] = ()
    why: str
    applies: Callable[[EvaluateSettings, RecordedActors], bool] = lambda settings, actors: True


UNPROVED = (
    Unproved(
        what="the small policy's replies",
        leaves=(
            *(f"{kind}: steps.*.proposal.text" for kind in _PLAYED),
            *(f"episodes: steps.*.decision.candidates.*{leaf}" for leaf in ("", ".text", ".score", ".logprob")),
        ),
        why="its weights are not in the folder; an action is held to its reply, a choice to its scores, and a reply to "
        "the same state of every other episode",
    ),
    Unproved(
        what="the small policy's tokens",
        why="a reply may hold special tokens, which no text shows, further samples are stored nowhere, and the tokens "
        "of a policy that R2V does not bring are its own count; bills are made of the steps' counts",
    ),
    Unproved(
        what="scores of routers",
        leaves=(
            *(f"{kind}: steps.*.decision.p_escalate" for kind in _PLAYED),
            *(f"setup: router_scores.{name}.p.*" for name in ("r2v", "disagreement_router")),
            *("states: scores", "states: scores.*"),
        ),
        why="models gave them; a score is held to its decision and to every other episode that meets its state. One "
        "that follows from seed, task and step is computed again",
        applies=lambda settings, actors: bool(settings.routed),
    ),
    Unproved(
        what="features of states",
        leaves=("gains: features.**", "states: features", "states: features.*"),
        why="entropies, the verifier's scores, samples and case support are a model's word, and only models read the "
        "counts of texts beside them; scores in setup.json that are made of one are held to it",
        applies=lambda settings, actors: bool(settings.routed),
    ),
    Unproved(
        what="what made the models",
        leaves=(
            "setup: git_commit",
            *(f"attempt: inputs.{name}.summary.**" for name in INPUTS),
            "artifact: summary.engine.**",
            *(f"config: {key}" for key in _TRAINING_KEYS),
        ),
        why="figures and settings of trainings, the commit and the serving engine describe what is not in the folder; "
        "no table is computed from them",
    ),
    Unproved(
        what=f"whose replies {' and '.join(OTHER_POLICIES)} hold",
        why="each is a policy of its own, which no other method's episodes show in the same state",
        applies=lambda settings, actors: bool({*OTHER_POLICIES} & {*settings.evaluation.played}),
    ),
    Unproved(
        what="the LLM's replies and tokens",
        why="a provider's model wrote and counted them; they cost its list price",
        applies=lambda settings, actors: actors.expert is None and settings.evaluation.asks_teacher,
    ),
    Unproved(
        what="the journal of a provider (.provider/)",
        why="no table is computed from what a provider was asked and paid; take it out of what you hand on",
        applies=lambda settings, actors: asks_provider(settings),
    ),
)


def asks_provider(settings: EvaluateSettings) -> bool:
    """True if a provider's model acts in an evaluation, or judges it."""
    return settings.teacher.provider != "scripted" or settings.policy.is_api or bool(settings.env.options.get("judge"))


def unproved_of(settings: EvaluateSettings, actors: RecordedActors) -> dict[str, str]:
    """The entries that apply to an evaluation: value -> reason."""
    reasons = {entry.what: entry.why for entry in UNPROVED if entry.applies(settings, actors)}
    if settings.policy.is_api:
        name = shown(settings.policy.model_name)
        reasons[UNPROVED[0].what] = f"{name} was asked through an API, which wrote and counted them"
    return reasons

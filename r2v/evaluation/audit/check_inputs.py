"""Inputs of an evaluation, as attempt.meta.json describes them: models and data that are not in the folder.

Which there are, what made each and where it lay follows from the stages; what each says of itself has a schema. Of the
figures only the router's realised point is used, and it is held to calibration.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from r2v.config.engines import EngineRecord
from r2v.constraints import Count, CountOrNone, NotNegative, OneOf, Positive, Range, Share, Text, check_fields
from r2v.data.schema import from_dict
from r2v.data.tools import TOOLS_FILE, tools_file_sha256
from r2v.envs.base import Benchmark, tools_of
from r2v.errors import InputError, R2VError
from r2v.evaluation.acting.readiness import Readiness
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import Fewer, read_json
from r2v.evaluation.settings import EvaluateSettings
from r2v.policy.training_tools import recorded
from r2v.router.rounds import RoundFigures
from r2v.storage.artifact import ATTEMPT
from r2v.storage.artifact_manifest import wrong_hashes
from r2v.storage.integrity import Artifact
from r2v.storage.model_identity import base_sha256
from r2v.storage.weights import BUNDLED

LogProb = Annotated[float, Range(at_least=-1e6, at_most=0)]
"""A mean log-probability of an action, in nats."""
Difference = Annotated[float, Range(at_least=-1, at_most=1)]
Margin = Annotated[float, Range(at_least=-1e6, at_most=1e6)]
Digest = Annotated[str, Text(pattern="[0-9a-f]{64}", meaning="a SHA-256 in hex")]


@dataclass(frozen=True, kw_only=True)
class Matched:
    """How often a clone's action is its teacher's."""

    n_steps: CountOrNone
    exact: Share
    canonical: Share
    parsed: Share


@dataclass(frozen=True, kw_only=True)
class CloneSummary:
    """What bc says of itself."""

    job: ClassVar = "bc"
    stage: ClassVar = "r2v.stages.train_policy:BC"
    n_episodes: Count
    n_steps: Count
    train_match: Matched
    held_out_match: Matched | None
    weights_sha256: Digest
    final_loss: NotNegative
    readiness: Readiness | None = None


@dataclass(frozen=True, kw_only=True)
class MeanLogProbs:
    """A policy on the pairs that it is trained on."""

    chosen_logp: LogProb
    rejected_logp: LogProb
    accuracy: Share


@dataclass(frozen=True, kw_only=True)
class AcceptanceFigures:
    """The trained policy beside the cloned one on calibration tasks, and which was published."""

    accepted: bool
    rule: Annotated[str, OneOf(values=("interval", "higher"))]
    cloned: Share
    trained: Share
    difference: Difference
    interval: list[Difference]
    n_tasks: Count
    detectable: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary:
    """What preference training says of itself."""

    job: ClassVar = "preference"
    stage: ClassVar = "r2v.stages.train_policy:PREFERENCE"
    n_pairs: Count
    n_tasks: Count
    reward_margin: Margin
    before: MeanLogProbs
    after: MeanLogProbs
    warnings: list[Annotated[str, Text()]]
    weights_sha256: Digest
    acceptance: AcceptanceFigures | None = None


@dataclass(frozen=True, kw_only=True)
class HandedOnSummary:
    """The same where preference training was off or had no pairs."""

    enabled: bool
    n_pairs: Annotated[int, OneOf(values=(0,))] = 0


@dataclass(frozen=True, kw_only=True)
class VerifierFigures:
    """A verifier on examples that it was not trained on; None where a figure needs two classes and there is one."""

    measured_on: Annotated[str, OneOf(values=("calibration tasks", "training tasks, out of fold"))]
    examples: Count
    tasks: Count
    auroc: Share | None
    auroc_within_state: Share | None
    ties_within_state: Share | None
    auroc_length_alone: Share | None
    auroc_teacher_alone: Share | None
    pr_auc: Share | None
    accuracy: Share
    accuracy_majority: Share
    brier: Share
    brier_constant: Share
    ece: Share
    auroc_last_observation_hidden: Share | None
    auroc_who_acted: Share | None
    temperature: Positive


@dataclass(frozen=True, kw_only=True)
class VerifierSummary:
    """What the verifier says of itself."""

    job: ClassVar = "verifier"
    stage: ClassVar = "r2v.stages.train_verifier:STAGE"
    n_examples: Count
    report: VerifierFigures | None
    left_out: str | None = None
    """The reason that there is no verifier."""
    consensus: dict[str, Any] | None = None
    n_env_faults: CountOrNone = 0
    fewer_than_asked: Fewer | None = None
    n_never_branched: CountOrNone = 0


@dataclass(frozen=True, kw_only=True)
class CaseSupportSummary:
    """Summary recorded by the case_support stage."""

    job: ClassVar = "case_support"
    stage: ClassVar = "r2v.stages.fit_case_support:STAGE"
    n_steps: Count
    n_tasks: Count
    n_terms: Count


@dataclass(frozen=True, kw_only=True)
class FeaturesSummary:
    """What the router's features say of themselves."""

    job: ClassVar = "router_features"
    stage: ClassVar = "r2v.stages.generate_router_features:STAGE"
    n_steps: Count
    n_tasks: Count
    n_disagreements: CountOrNone
    n_gain: CountOrNone
    n_harm: CountOrNone
    slm_success: Share
    n_env_faults: CountOrNone = 0
    fewer_than_asked: Fewer | None = None
    engine: EngineRecord | None = None
    n_never_branched: CountOrNone = 0
    rounds: list[RoundFigures] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SplitFigures:
    """A router on one split; None where there is one class."""

    steps: Count
    tasks: Count
    positive_share: Share
    auroc: Share | None
    brier: Share
    brier_constant: Share


@dataclass(frozen=True, kw_only=True)
class RouterReport:
    """A router on both of its splits."""

    train: SplitFigures
    calibration: SplitFigures


@dataclass(frozen=True, kw_only=True)
class RouterSummary:
    """What the router says of itself: its threshold and what was realised with it on calibration tasks."""

    job: ClassVar = "router"
    stage: ClassVar = "r2v.stages.train_router:STAGE"
    tau: Share
    llm_call_rate: Share
    success: Share
    cost: NotNegative
    report: RouterReport
    fewer_than_asked: Fewer | None = None
    engine: EngineRecord | None = None


INPUTS: Mapping[str, type[Any]] = {
    kind.job: kind
    for kind in (RouterSummary, CloneSummary, PreferenceSummary, VerifierSummary, FeaturesSummary, CaseSupportSummary)
}
"""What an evaluation of trained models reads: job -> what its stage says of itself."""


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """One input of the attempt, as attempt.meta.json describes it."""

    folder: str
    stage: str
    fingerprint: str
    files: dict[str, str]
    summary: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """attempt.meta.json: the job, the hashes of the models that it read, and its inputs."""

    job: str
    bases: dict[str, Digest] = field(default_factory=dict)
    """Empty: made before models were hashed, or the policy plays nowhere."""
    inputs: dict[str, InputRecord] = field(default_factory=dict)

    @property
    def left_out_verifier(self) -> bool:
        """True if no verifier could be trained, so that no method reads one."""
        return "verifier" in self.inputs and self.inputs["verifier"].summary.get("left_out") is not None


def read_attempt(results: Path, findings: Findings) -> AttemptRecord:
    """attempt.meta.json; an empty record, with a finding, where that is damaged."""
    try:
        attempt: AttemptRecord = read_json(results / ATTEMPT, AttemptRecord)
    except InputError as error:
        findings.add(ATTEMPT, str(error))
        return AttemptRecord(job="evaluate")
    return attempt


def check_bases(attempt: AttemptRecord, settings: EvaluateSettings, findings: Findings) -> None:
    """Hold the hash of a bundled base to the one that this R2V brings; that of another is the folder's word."""
    name = settings.policy.model_name
    if unknown := sorted(attempt.bases.keys() - ({"base"} if settings.reads_base else set())):
        findings.add(ATTEMPT, f"bases.{unknown[0]} is none that an evaluation with these methods reads")
    recorded = attempt.bases.get("base")
    if name in BUNDLED and recorded is not None and recorded != (here := base_sha256(name)):
        findings.add(ATTEMPT, f"bases.base is {recorded[:12]}, the bundled model {name} is {here[:12]}")


def input_artifacts(
    results: Path, attempt: AttemptRecord, settings: EvaluateSettings, findings: Findings
) -> dict[str, Artifact]:
    """The inputs as attempt.meta.json lists them."""
    if attempt.job != "evaluate":
        findings.add(ATTEMPT, f"job is {attempt.job}, of an evaluation it is evaluate")
    expected = set(INPUTS if settings.evaluation.of_trained else ())
    if not settings.router.reads_cases:
        expected.discard(CaseSupportSummary.job)
    if settings.policy.is_api:
        expected -= {CloneSummary.job, PreferenceSummary.job, VerifierSummary.job}
    for name in sorted(expected ^ attempt.inputs.keys()):
        findings.add(ATTEMPT, f"inputs.{name} is {'missing' if name in expected else 'none of these methods'}")
    for name, one in attempt.inputs.items():
        findings.extend(ATTEMPT, (f"inputs.{name}: {problem}" for problem in _problems(name, one)))
    return {
        name: Artifact(
            stage=one.stage, fingerprint=one.fingerprint, folder=results, files=one.files, summary=one.summary
        )
        for name, one in attempt.inputs.items()
    }


def check_tools(
    inputs: Mapping[str, Artifact], settings: EvaluateSettings, benchmark: Benchmark, findings: Findings
) -> None:
    """Hold the tools that the policy was told in training, which bc's manifest names by their hash, to those that the
    benchmark's world says. Others are no lie (logs have tools of their own, a benchmark may have changed its own), and
    stand among what is not proved."""
    if settings.policy.tools != "auto" or "bc" not in inputs:
        return
    told = inputs["bc"].files.get(TOOLS_FILE)
    if told is None:
        findings.add(ATTEMPT, f"inputs.bc holds no {TOOLS_FILE}, though its policy is told tools (policy.tools=auto)")
    elif told != (here := tools_file_sha256(recorded(tools_of(benchmark)))):
        findings.unproven["the tools of the training"] = (
            f"the policy was cloned with other tools ({TOOLS_FILE} is {told[:12]}) than the world here says "
            f"({here[:12]}), which it was told while it played"
        )


def _problems(name: str, one: InputRecord) -> Iterator[str]:
    summary = INPUTS.get(name)
    if summary is not None and one.stage != summary.stage:
        yield f"stage is {one.stage}, it is made by {summary.stage}"
    if one.folder.rpartition("/")[2] != f"{name}-{one.fingerprint}":
        yield f"folder {one.folder} is not that of fingerprint {one.fingerprint}"
    if wrong := wrong_hashes(one.files, "files"):
        yield wrong
    if summary is None:
        return
    try:
        check_fields("summary", from_dict(_variant(summary, one), one.summary))
    except (ValueError, R2VError) as error:
        yield f"summary: {error}"


def _variant(summary: type[Any], one: InputRecord) -> type[Any]:
    """What the input says of itself where it was handed on and not trained."""
    if summary is not PreferenceSummary:
        return summary
    return HandedOnSummary if "enabled" in one.summary else summary

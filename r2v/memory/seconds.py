"""Estimate of a stage's time on a GPU: operations over what the card does of them, and nothing measured.

    estimate(config, "evaluate", shape, machine).seconds

Basis: a token costs 2 operations a parameter that it meets; training three times that, four with gradient
checkpointing; a card does UTILISATION of its datasheet's dense 16-bit operations, and adding a token reads all weights
once at BANDWIDTH of its datasheet's bandwidth. Every context counts as full (policy.max_seq_len) and every episode as
truncated (inference.max_steps), and no method is taken to share replies with another, so the estimate is near the most
that it can take; environments, judges and the LLM are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from r2v.config import METHODS, PHASES, Config, PhaseName
from r2v.memory.planner.stage_names import ACTING_STAGES
from r2v.memory.shapes import Shape

CARDS: dict[str, tuple[float, float]] = {
    "v100": (125e12, 0.9e12),
    "a10": (125e12, 0.6e12),
    "a100": (312e12, 2.0e12),
    "a6000": (155e12, 0.77e12),
    "l4": (121e12, 0.3e12),
    "l40s": (362e12, 0.86e12),
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
    "h20": (148e12, 4.0e12),
}
"""Dense 16-bit operations and bytes of memory a second, by the vendor's datasheets (tensor cores, no sparsity)."""
ASSUMED = "a100"
ON_ONE_CARD = "verifier"
"""The training that one process does, whatever there is."""
UTILISATION, BANDWIDTH = 0.35, 0.5
"""Shares of the datasheet's figures: assumptions."""
EPISODES, EVALUATED = 1000, 100
"""Training tasks where data.num_episodes leaves their number to the benchmark, and evaluation tasks where
evaluation.num_tasks does: assumptions."""


@dataclass(frozen=True, kw_only=True)
class StageTokens:
    """What a stage computes."""

    trained: float = 0
    """Tokens that go forward and backward."""
    read: float = 0
    """Tokens that go forward only."""
    waves: float = 0
    """Tokens that are added one after another, each to a whole batch."""


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """An estimate, and the tokens that it is of."""

    seconds: float
    tokens: StageTokens
    card: str


def estimate(
    config: Config,
    stage: str,
    shape: Shape,
    *,
    card: str = "",
    gpus: int = 1,
    checkpointing: bool = False,
    batch: int = 1,
) -> TimeEstimate:
    """Seconds of a stage on `gpus` cards of a kind (acting and `ON_ONE_CARD` use one); an unknown kind counts as
    ASSUMED."""
    used = 1 if stage == ON_ONE_CARD else gpus
    return estimate_of(work_of(config, stage, batch), shape, card=card, gpus=used, checkpointing=checkpointing)


def estimate_of(
    work: StageTokens, shape: Shape, *, card: str = "", gpus: int = 1, checkpointing: bool = False
) -> TimeEstimate:
    """Seconds that these tokens take; all but the training ones on one card."""
    known = next((name for name in CARDS if card.lower() == name), ASSUMED)
    operations, bandwidth = CARDS[known]
    per_token = 2.0 * shape.parameters_per_token
    cost = per_token * (work.trained * (4 if checkpointing else 3) + work.read)
    added = work.waves * shape.parameters * 2 / (bandwidth * BANDWIDTH)
    return TimeEstimate(
        seconds=cost / (operations * UTILISATION * (gpus if work.trained else 1)) + added, tokens=work, card=known
    )


def work_of(config: Config, stage: str, batch: int) -> StageTokens:
    """The tokens of a stage, all contexts full and all episodes of the greatest length."""
    if stage in PHASES:
        return _training(config, stage)
    if stage not in ACTING_STAGES:
        return StageTokens()
    requests, scored, samples = _requests(config, stage)
    written = config.inference.max_new_tokens
    rows = requests * samples
    return StageTokens(
        read=requests * config.policy.max_seq_len * (1 + scored) + rows * written,
        waves=written * -(-rows // batch),
    )


def _training(config: Config, stage: PhaseName) -> StageTokens:
    phase, longest = config.training.phase(stage), config.policy.max_seq_len
    episodes = (config.data.num_episodes or EPISODES) * len(config.data.seeds)
    if stage == "bc":
        twins = len(config.data.perturbation_seeds.train) if config.data.condition == "noisy" else 0
        rows = episodes * (twins + config.perturb.include_clean)
        times = 1.0
    elif stage == "verifier":
        rows = config.verifier.num_tasks * (1 + config.verifier.num_corruptions)
        times = config.candidates.num_folds  # one on all of it, and each fold on what the others leave
    else:
        if not config.preference.enabled:
            return StageTokens()
        rows = 2 * config.candidates.num_tasks * config.preference.max_pairs_per_task
        times = 1.0
    rows = min(rows, phase.max_examples or rows)
    tokens = rows * longest * phase.num_epochs * times
    return StageTokens(trained=tokens, read=rows * longest if stage == "preference" else 0)


def _requests(config: Config, stage: str) -> tuple[float, float, int]:
    """(requests of local models, how often each context is scored besides, completions of a request). A branch goes on
    for half an episode."""
    steps, router = config.inference.max_steps, config.router
    calibration = router.num_calibration_tasks
    samples = config.inference.num_candidates if "samples" in router.features else 1
    if stage == "candidates":
        each = config.candidates.num_samples
        return config.candidates.num_tasks * steps * (1 + each * steps / 2), 1 / steps, 1
    if stage == "router_features":
        routed = router.routed_rounds * (router.round_tasks + calibration)
        return (router.num_tasks + calibration + routed) * len(router.seeds) * steps * (1 + steps / 2), 1, samples
    if stage == "router":
        return 8 * calibration * steps, 1, samples
    tasks = config.evaluation.num_tasks or EVALUATED
    local = sum(METHODS[name].name != "llm_only" for name in config.evaluation.methods)
    if stage == "ablations":
        return 2 * len(config.ablations.rows) * tasks * len(config.ablations.seeds) * steps, 1, samples
    episodes = local * tasks * len(config.evaluation.seeds) * len(config.evaluation.conditions)
    return episodes * steps, 1, samples

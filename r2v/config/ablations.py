"""The ablation registry: every ablation by name, as configuration overrides and nothing else.

This is the only list of their names. `r2v.experiments.ablations` says which rows a configuration can tell anything of,
and makes both sides of each.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL_ROWS = "all"
"""In `ablations.names`: every row, in the order of the table."""
_UNSEEN = ("preference.accept=always",)
"""What rows on preference training set on both sides: else a training that is thrown away is a row of zeros, which
tells of the acceptance and not of what the row is about."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One row: what is changed, and which method of the changed pipeline is compared with which of the whole. Both play
    the same worlds."""

    name: str
    """As `ablations.names` and the table spell it."""
    description: str
    """What is changed, in a few words."""
    overrides: tuple[str, ...] = ()
    """Of the ablated side."""
    shared: tuple[str, ...] = ()
    """Overrides of both sides."""
    base_method: str = "r2v"
    """Who plays on the base's side."""
    ablated_method: str = "r2v"
    """Who plays on the ablated side."""
    condition: str | None = None
    """What both sides play under; None: noisy, or else the first of `evaluation.conditions`."""


ABLATION_ROWS = {
    row.name: row
    for row in (
        Ablation(name="none", description="nothing is changed"),
        Ablation(
            name="with_verifier",
            description="the router sees the verifier too",
            overrides=("router.features=[uncertainty,verifier,progress,page,tool]",),
        ),
        Ablation(
            name="with_cases",
            description="the router sees how the teacher's nearest recorded steps act",
            overrides=("router.features=[uncertainty,progress,page,tool,cases]",),
        ),
        Ablation(
            name="no_dpo", description="the policy after behaviour cloning", overrides=("preference.enabled=false",)
        ),
        Ablation(
            name="no_perturbation",
            description="the policy is cloned from clean episodes only",
            overrides=("perturb.constructions=[]",),
        ),
        Ablation(
            name="no_reroll",
            description="noisy episodes by edits and inserted retries only, none re-played",
            overrides=("perturb.constructions=[annotate,insert]",),
        ),
        Ablation(
            name="offline_replacement",
            description="noisy episodes by replaced pages under the recorded actions, none re-played: what that harms",
            overrides=("perturb.constructions=[replace]",),
        ),
        Ablation(
            name="candidates_k2",
            description="two candidates a state for DPO",
            overrides=("candidates.num_samples=2",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="candidates_k8",
            description="eight candidates a state for DPO",
            overrides=("candidates.num_samples=8",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="best_of_2",
            description="the verifier's favourite of 2 against one greedy action, no router",
            overrides=("inference.num_candidates=2",),
            base_method="slm_only",
            ablated_method="best_of_k",
        ),
        Ablation(
            name="best_of_4",
            description="the verifier's favourite of 4 against one greedy action, no router",
            overrides=("inference.num_candidates=4",),
            base_method="slm_only",
            ablated_method="best_of_k",
        ),
        Ablation(
            name="feat_uncertainty_only",
            description="the router sees uncertainty only",
            overrides=("router.features=[uncertainty]",),
        ),
        Ablation(
            name="feat_verifier_only",
            description="the router sees the verifier only",
            overrides=("router.features=[verifier]",),
        ),
        Ablation(
            name="feat_no_uncertainty",
            description="the router sees no uncertainty",
            overrides=("router.features=[progress,page,tool]",),
        ),
        Ablation(
            name="feat_no_page",
            description="the router sees nothing of the page",
            overrides=("router.features=[uncertainty,progress,tool]",),
        ),
        Ablation(
            name="label_episode",
            description="the router blames every step of a failed episode",
            overrides=("router.label=episode",),
        ),
        Ablation(
            name="label_disagreement",
            description="the router learns where the LLM would act otherwise",
            overrides=("router.label=disagreement",),
        ),
        Ablation(
            name="router_logistic",
            description="a logistic router, which can be read, for boosted trees",
            overrides=("router.model=logistic",),
        ),
        Ablation(
            name="no_rounds",
            description="the router learns from the small policy's own states, where it plays on alone",
            overrides=("router.rounds=0",),
        ),
        Ablation(
            name="no_blend",
            description="the router scores the gain alone, without disagreement",
            overrides=("router.disagreement_weight=0",),
        ),
        Ablation(
            name="no_choice",
            description="the router acts by its own score at every operating point",
            overrides=("router.choose_score=false",),
        ),
        Ablation(
            name="no_canary_price",
            description="an injected instruction that is carried out costs nothing in the labels",
            overrides=("router.canary_price=0",),
        ),
        Ablation(
            name="dpo_unseen",
            description="preference training is published whatever it does on calibration tasks",
            overrides=("preference.accept=always",),
        ),
        Ablation(
            name="pairs_by_verifier",
            description="pairs by the verifier's scores for executed values",
            overrides=("preference.pair_mode=verifier_margin",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="pairs_by_consensus",
            description="pairs by the verifier's scores where executed values agree",
            overrides=("preference.pair_mode=consensus",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="beta_005",
            description="DPO's beta .05",
            overrides=("preference.beta=0.05",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="beta_02",
            description="DPO's beta .2",
            overrides=("preference.beta=0.2",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="beta_05",
            description="DPO's beta .5",
            overrides=("preference.beta=0.5",),
            shared=_UNSEEN,
        ),
        Ablation(
            name="verifier_margin_0",
            description="pairs of any difference of the verifier's scores for those of .2",
            overrides=("preference.min_margin=0.0",),
            shared=(*_UNSEEN, "preference.pair_mode=verifier_margin"),
        ),
        Ablation(
            name="verifier_margin_04",
            description="pairs of a difference of .4 of the verifier's scores for those of .2",
            overrides=("preference.min_margin=0.4",),
            shared=(*_UNSEEN, "preference.pair_mode=verifier_margin"),
        ),
        Ablation(
            name="candidates_k1",
            description="one candidate a state for DPO, beside the teacher's",
            overrides=("candidates.num_samples=1",),
            shared=_UNSEEN,
        ),
        Ablation(name="lora_r4", description="adapters of rank 4", overrides=("policy.lora_r=4",)),
        Ablation(name="lora_r8", description="adapters of rank 8", overrides=("policy.lora_r=8",)),
        Ablation(name="lora_r16", description="adapters of rank 16", overrides=("policy.lora_r=16",)),
        Ablation(name="lora_r32", description="adapters of rank 32", overrides=("policy.lora_r=32",)),
        Ablation(name="lora_r64", description="adapters of rank 64", overrides=("policy.lora_r=64",)),
        Ablation(
            name="no_clean",
            description="the policy is cloned from perturbed episodes only",
            overrides=("perturb.include_clean=false",),
        ),
        Ablation(
            name="nothing_held_out",
            description="no category of perturbation is held out of training",
            overrides=("perturbations.held_out=[]",),
            condition="shift",
        ),
        Ablation(
            name="verifier_by_outcome",
            description="the verifier learns recorded outcomes alone",
            overrides=("verifier.label_sources=[outcome]",),
            base_method="verifier_router",
            ablated_method="verifier_router",
        ),
        Ablation(
            name="verifier_by_td",
            description="the verifier learns temporal differences of recorded outcomes",
            overrides=("verifier.label_sources=[td]",),
            base_method="verifier_router",
            ablated_method="verifier_router",
        ),
        Ablation(
            name="verifier_by_consensus",
            description="the verifier learns executed labels that a judge confirms",
            overrides=("verifier.label_sources=[consensus]",),
            base_method="verifier_router",
            ablated_method="verifier_router",
        ),
        Ablation(
            name="verifier_by_execution",
            description="the verifier learns wrong actions that were played on to the end (Monte Carlo, one play each)",
            overrides=("verifier.label_sources=[corrupted]",),
            base_method="verifier_router",
            ablated_method="verifier_router",
        ),
        Ablation(
            name="verifier_by_judge",
            description="the verifier learns the scores of an LLM as a judge",
            overrides=("verifier.mode=llm_judge",),
            base_method="verifier_router",
            ablated_method="verifier_router",
        ),
        Ablation(
            name="feat_progress_only",
            description="the router sees progress only",
            overrides=("router.features=[progress]",),
        ),
        Ablation(
            name="feat_no_progress",
            description="the router sees no progress",
            overrides=("router.features=[uncertainty,page,tool]",),
        ),
        Ablation(
            name="best_of_8",
            description="the verifier's favourite of 8 against one greedy action, no router",
            overrides=("inference.num_candidates=8",),
            base_method="slm_only",
            ablated_method="best_of_k",
        ),
        Ablation(
            name="no_bc",
            description="the small policy's base model, neither cloned nor preferred, no router",
            base_method="slm_bc_only",
            ablated_method="slm_base",
        ),
        Ablation(
            name="dpo_from_base",
            description="DPO from the base model: cloning is one update at a rate that moves no weight",
            overrides=("training.bc.max_examples=1", "training.bc.num_epochs=1", "training.bc.lr=1.0e-12"),
            shared=_UNSEEN,
        ),
        Ablation(
            name="three_noisy_seeds",
            description="three perturbed episodes of each kind for a clean one",
            overrides=("data.perturbation_seeds.train=[101,102,103]",),
        ),
        Ablation(
            name="held_out_family",
            description="a family of prompt injection, exfiltration, is held out of training too",
            overrides=("perturbations.held_out_families=[exfiltration]",),
            condition="shift",
        ),
        Ablation(
            name="router_constant",
            description="a router that sees nothing: all steps or none",
            overrides=("router.model=constant",),
        ),
        Ablation(
            name="feat_no_tool",
            description="the router does not see the tool",
            overrides=("router.features=[uncertainty,progress,page]",),
        ),
    )
}

"""Every row, in the order of ablations.csv."""

DEFAULT_ABLATIONS = (
    "with_verifier",
    "no_rounds",
    "no_blend",
    "no_choice",
    "no_dpo",
    "no_perturbation",
    "best_of_4",
    "feat_uncertainty_only",
    "label_episode",
    "label_disagreement",
)
"""The rows that a study has where its configuration names none."""

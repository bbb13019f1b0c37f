"""The plan of stages that act, compared with the bytes of their own code: models in memory, sampling, and the rows that
fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import PolicyConfig, Price, load
from r2v.llm.local.backend import LocalBackend
from r2v.llm.types import Request, ScoreRequest
from r2v.memory.configured import acting_job
from r2v.memory.measured.tracker import Tracker
from r2v.memory.models import known_model
from r2v.memory.planner.acting import MOST_ROWS, ActingJob, acting_memory, left_to, plan_acting, roles
from r2v.memory.planner.training_job import Machine
from r2v.memory.report import verdict
from r2v.memory.sizes import GIB
from r2v.policy.export import export
from r2v.policy.load import Loaded, load_policy
from r2v.policy.shared_base import acting_policy
from r2v.verifier.model import VerifierBackend, VerifierModel, save
from r2v.verifier.model import load as load_verifier
from r2v.wire.message import Message
from tests import tiny_models
from tests.memory.measuring import lookup, measure

ACTING = "r2v.llm.local.rehearsal:memory"

ROWS, PROMPT, ACTION, RANK = 24, 180, 12, 8


def project(folder: Path, dtype: str = "float32") -> tuple[PolicyConfig, list[Path], list[Path]]:
    """Return a random model with two policies and two verifiers, all of them adapters. Its sliding window is longer
    than any text: transformers keeps its cache as on a GPU, and no prompts are cached."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=320,
        vocab_size=6000,
        sliding_window=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=2,
    )
    model = MistralForCausalLM(config).to(getattr(torch, dtype))
    base = folder / "base"
    export(Loaded(model=model, tokenizer=tiny_models.tokenizer(), name="random"), base)
    policy = PolicyConfig(model_name=str(base), lora_r=RANK, max_seq_len=PROMPT + ACTION, device="cpu")
    policies, verifiers = [folder / "clone", folder / "policy"], [folder / "fold0", folder / "fold1"]
    for number, final in enumerate((*policies, *verifiers)):
        loaded = load_policy(policy, for_training=True, seed=number)
        export(loaded, final)
        if final in verifiers:
            save(VerifierModel(loaded.model), final, adapted=True)
    return policy, policies, verifiers


@pytest.mark.parametrize(
    ("dtype", "drawn"), [("float32", ("greedy", "sampled", "nucleus")), ("bfloat16", ("nucleus",))]
)
def test_policy_clone_and_a_verifier_with_folds_stand_on_one_base_and_peak_as_planned(
    dtype: str, drawn: tuple[Any, ...], tmp_path: Path
) -> None:
    """Compared with the bytes that their own code allocates: 1 % at most, where 3 % are promised."""
    policy, policies, verifiers = project(tmp_path, dtype)
    job = ActingJob(
        stage="candidates",
        code=ACTING,
        model=known_model(policy.model_name, measure),
        actors=("policy", "clone"),
        verifiers=("fold 0", "fold 1"),
        lora_rank=RANK,
        width=4 if dtype == "float32" else 2,
        batch=ROWS,
        prompt_tokens=PROMPT,
        completion_tokens=ACTION,
    )
    players = [acting_policy(policy, final) for final in policies]
    judges = [load_verifier(final, acting_policy(policy, final).model) for final in verifiers]
    ids = torch.randint(5, 60, (ROWS, PROMPT + ACTION)).tolist()
    with Tracker() as tracker:
        tracker.label("weights", players[0].model.parameters())
        for judge in judges:
            tracker.label("weights", judge.head.parameters())
        assert tracker.live == pytest.approx(sum(role.state.static for role in roles(job)), rel=0.001)
        for sampling in drawn:
            with tracker.span(sampling):
                generated(players[0], ids, **SAMPLINGS[sampling])
        with tracker.span("score"):
            scored(judges[0], ids)
    for sampling in drawn:
        asked = replace(job, sampling=sampling, samples=SAMPLINGS[sampling].get("num_samples", 1))
        planned = acting_memory(asked, "generate", ROWS, lookup).total
        assert planned == pytest.approx(tracker.peaks[sampling], rel=0.01), sampling
    assert acting_memory(job, "score", ROWS, lookup).total == pytest.approx(tracker.peaks["score"], rel=0.01)


SAMPLINGS: dict[Any, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"num_samples": 4, "temperature": 0.7},
    "nucleus": {"num_samples": 4, "temperature": 0.7, "top_p": 0.9},
}


def generated(player: Loaded, ids: list[list[int]], num_samples: int = 1, **drawing: Any) -> None:
    """Generate ROWS completions in one wave."""
    price = Price(input=0, output=0, seconds_per_call=0, seconds_per_token=0)
    backend = LocalBackend(
        player.model,
        player.tokenizer,
        lambda messages: ids[int(messages[0].content)][messages[0].content == "0" : PROMPT],  # one is shorter
        name="slm",
        price=price,
        max_batch=ROWS,
    )
    requests = [
        Request(
            messages=(Message(role="user", content=str(row)),),
            key=("test", row),
            max_tokens=ACTION,
            num_samples=num_samples,
            **drawing,
        )
        for row in range(ROWS // num_samples)
    ]
    assert len(backend.answer(requests)) == len(requests)


def scored(judge: VerifierModel, ids: list[list[int]]) -> None:
    """Score ROWS contexts with their actions in one wave."""
    backend = VerifierBackend(judge, lambda messages, action: ids[int(action)][action == "0" :], ROWS)
    backend.answer([ScoreRequest(messages=(), action=str(row)) for row in range(ROWS)])


EIGHT = ["policy.model_name=meta-llama/Llama-3.1-8B", "policy.max_seq_len=4096", "inference.max_new_tokens=256"]


def test_adapters_share_a_base_and_whole_weights_do_not() -> None:
    """Three models of 8 B for two folds, or one."""
    for rank, models in ((16, 1), (0, 3)):
        job = acting_job(load(None, [*EIGHT, f"policy.lora_r={rank}"]), "candidates", ACTING)
        weights = sum(role.state.static for role in roles(job))
        assert weights / (2 * job.model.sizes.parameters) == pytest.approx(models, rel=0.15)


def test_the_cast_of_a_stage_is_that_of_its_configuration() -> None:
    def cast(stage: Any, *overrides: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        job = acting_job(load(None, [*EIGHT, "policy.lora_r=16", *overrides]), stage, ACTING)
        return job.actors, job.verifiers

    assert cast("evaluate") == (("policy", "slm_bc_only"), ("verifier",))
    assert cast("evaluate", "evaluation.methods=[slm_base,llm_only]") == (("slm_base",), ())
    assert cast("candidates", "candidates.num_folds=3")[1] == ("verifier fold 0", "verifier fold 1", "verifier fold 2")
    assert cast("evaluate", "evaluation.methods=[slm_only,r2v]") == (("policy",), ())
    assert cast("router") == cast("router_features") == (("policy",), ())
    reads = "router.features=[verifier]"
    assert cast("router", reads) == cast("router_features", reads) == (("policy",), ("verifier",))
    assert cast("evaluate", "evaluation.methods=[slm_only,r2v]", reads)[1] == ("verifier",)
    assert cast("ablations") == (("policy",), ("verifier",)), "rows of it read the verifier"


def test_a_serving_engine_leaves_the_rest_of_the_card() -> None:
    card, key = Machine(memory=80 * GIB), "policy.engine_memory=0.5"
    served, whole = (
        acting_job(load(None, [*EIGHT, "policy.lora_r=16", key, f"policy.engine={engine}"]), "evaluate", ACTING)
        for engine in ("vllm", "local")
    )
    assert (served.engine_memory, whole.engine_memory) == (0.5, 0.0)
    left = left_to(served, card)
    assert left.prefixes == 4 * GIB, "the verifier's; the engine has its own"
    own = left_to(whole, Machine(memory=40 * GIB)).prefixes
    assert own == pytest.approx(3 * 0.05 * 40 * GIB), "the policy's, the clone's and the verifier's"
    alike = Machine(memory=40 * GIB - 4 * GIB + 0.95 * own)
    assert plan_acting(served, card, lookup).batch == pytest.approx(plan_acting(whole, alike, lookup).batch, abs=1)
    assert "the engine has 50% of the card" in verdict(plan_acting(served, card, lookup))
    keys = ("policy.lora_r=16", "policy.engine=vllm", "policy.engine_memory=0.4", "policy.engine_verifier=true")
    both = acting_job(load(None, [*EIGHT, *keys]), "evaluate", ACTING)
    assert left_to(both, card).memory == pytest.approx(32 * GIB), "a server's share"


def test_sampling_costs_more_than_the_greedy_choice() -> None:
    def job(*overrides: str) -> ActingJob:
        return acting_job(load(None, [*EIGHT, *overrides]), "evaluate", ACTING)

    assert (job().samples, job().sampling) == (1, "greedy")
    best = job("evaluation.methods=[best_of_k,slm_only]")
    assert (best.samples, best.sampling) == (4, "nucleus")
    assert job("router.features=[samples]", "inference.top_p=1").sampling == "sampled"


def test_the_wave_that_fits_is_found_and_the_next_does_not_fit() -> None:
    config = load(None, [*EIGHT, "policy.lora_r=16"])
    job = replace(acting_job(config, "evaluate", ACTING), chosen=False)
    planned = plan_acting(job, Machine(memory=40 * GIB), lookup)
    assert 1 <= planned.batch < job.batch and planned.fits
    both = acting_memory(job, "both at once", planned.batch, lookup)
    usable = left_to(job, planned.machine).usable
    assert usable == pytest.approx(planned.machine.usable - 3 * 0.05 * 40 * GIB), "where three models keep prompts"
    assert both.reserved(planned.machine) <= usable
    assert acting_memory(job, "both at once", planned.batch + 1, lookup).reserved(planned.machine) > usable
    assert planned.binding.memory.total == both.total
    refused = plan_acting(job, Machine(memory=16 * GIB), lookup)
    assert not refused.fits and refused.batch == 0
    chosen = plan_acting(replace(job, chosen=True), Machine(memory=40 * GIB), lookup)
    assert 1 <= chosen.batch < planned.batch and chosen.job.batch == MOST_ROWS, "half of the room for a policy's wave"
    assert f"fits in waves of at least {chosen.batch} rows, chosen from the free memory" in verdict(chosen)
    explicit = acting_job(load(None, [*EIGHT, "rollout.batch_size=5"]), "evaluate", ACTING)
    assert explicit.batch == 5 and not explicit.chosen

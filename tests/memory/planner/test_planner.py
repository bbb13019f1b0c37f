"""Plans: cases that fit, refusals, and the largest micro-batches."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.memory.configured import job_of_hierarchical, job_of_stage
from r2v.memory.measurement import MeasuredCase, MeasuredMemory
from r2v.memory.models import known_model
from r2v.memory.planner.phases import phase_memory
from r2v.memory.planner.planner import Plan, plan, remedies
from r2v.memory.planner.state import Shards, sharded, trained
from r2v.memory.planner.training_job import Machine, StageName, TrainingJob
from r2v.memory.report import as_json, report, verdict
from r2v.memory.sizes import GIB
from r2v.memory.store import UnmeasurableError
from r2v.pipeline.jobs import JOBS
from tests.memory.measuring import lookup

CODES = {row.name: row.memory for row in JOBS}
A_GPU = 44.53 * GIB
HRL = CODES["hierarchical"]
SHARED = TrainingJob(
    stage="hierarchical", code=HRL, model=known_model("Llama-3.2-3B"), critic=known_model("roberta-base")
)
SEED = replace(SHARED, lora_rank=0, precision="float32", value=True)


def largest(found: Plan) -> bool:
    """True if each phase's rows fit, and one more would not (or is not asked for)."""
    for device in found.devices:
        for one in device.phases:

            def reserved(rows: int, device=device, one=one) -> float:  # type: ignore[no-untyped-def]
                return phase_memory(found.job, found.strategy, device.device, one.phase, rows, lookup).reserved(
                    found.machine
                )

            if reserved(one.micro_batch) > found.machine.usable:
                return False
            if one.micro_batch < one.phase.batch and reserved(one.micro_batch + 1) <= found.machine.usable:
                return False
    return True


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_seeds_full_training_is_refused_with_its_arithmetic(gpus: int) -> None:
    found = plan(SEED, Machine(memory=A_GPU, gpus=gpus), lookup)
    assert not found.fits
    assert "112.02 GiB" in verdict(found) and "44.53 GiB" in verdict(found)
    assert any("policy.lora_r=16" in line for line in remedies(found))


def test_the_seeds_own_split_with_offload_does_not_fit_either() -> None:
    found = plan(SEED, Machine(memory=A_GPU, gpus=2), lookup, placement="split")
    assert not found.fits
    assert {device.device.name: round(device.static / GIB) for device in found.devices} == {
        "gpu 0": 37,
        "gpu 1": 37,
        "cpu": 12,
    }


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_the_shared_plan_fits(gpus: int) -> None:
    found = plan(SHARED, Machine(memory=A_GPU, gpus=gpus), lookup)
    assert found.fits and found.strategy.placement == "shared"


@pytest.mark.parametrize("memory", [16, 24, 44.53, 80, 141])
@pytest.mark.parametrize("tokens", [128, 1024])
def test_micro_batches_are_the_largest_that_fit(memory: float, tokens: int) -> None:
    found = plan(replace(SHARED, prompt_tokens=tokens, completion_tokens=tokens), Machine(memory=memory * GIB), lookup)
    assert found.fits and largest(found)


def test_more_rows_never_need_less() -> None:
    """Bisection depends on it."""
    found = plan(SHARED, Machine(memory=A_GPU), lookup)
    for device in found.devices:
        for one in device.phases:
            sizes = [
                phase_memory(SHARED, found.strategy, device.device, one.phase, rows, lookup).total
                for rows in (1, 2, 3, 5, 8, 13)
            ]
            assert sizes == sorted(sizes), one.phase.name


def test_the_peak_is_the_worst_phase_and_not_the_sum() -> None:
    found = plan(SHARED, Machine(memory=A_GPU), lookup)
    worst = max(one.memory.total for one in found.phases)
    assert found.binding.memory.total == worst <= found.machine.usable < sum(one.memory.total for one in found.phases)


def test_checkpointing_is_turned_on_where_it_is_needed() -> None:
    small = plan(SHARED, Machine(memory=20 * GIB), lookup)
    assert small.fits and small.strategy.checkpoint
    assert not plan(SHARED, Machine(memory=141 * GIB), lookup).strategy.checkpoint


def test_sharding_is_chosen_where_full_training_needs_it() -> None:
    found = plan(SEED, Machine(memory=80 * GIB, gpus=8), lookup)
    assert found.fits and found.strategy.shards != "none"


def test_the_vocabulary_counts() -> None:
    """With 128 256 words the chain over the logits is the peak of two rows."""
    found = plan(SHARED, Machine(memory=141 * GIB), lookup, checkpoint=True)
    device = found.devices[0].device
    actor = next(phase for phase in device.phases if phase.name == "actor")
    memory = phase_memory(SHARED, found.strategy, device, actor, 2, lookup)
    assert memory.peak_at == "backward, logits"
    assert memory.activation > 3 * 256 * 128_256 * 4, "a chunk of them in float32, and what is made of it"


def test_the_same_work_gives_the_same_plan() -> None:
    machine = Machine(memory=A_GPU, gpus=2)
    assert plan(SHARED, machine, lookup) == plan(SHARED, machine, lookup)


@pytest.mark.parametrize("stage", ["bc", "preference", "verifier"])
@pytest.mark.parametrize("rank", [0, 16])
def test_the_other_stages_are_planned_too(stage: str, rank: int) -> None:
    job = TrainingJob(stage=stage, code=CODES[stage], model=known_model("Qwen2.5-0.5B"), lora_rank=rank, batch=16)  # type: ignore[arg-type]
    found = plan(job, Machine(memory=24 * GIB), lookup)
    assert found.fits and largest(found)


def test_a_4_bit_table_is_there_twice_for_a_moment_when_it_is_loaded() -> None:
    """Llama-3.1-8B: 6.98 G matrix weights in .5625 bytes and 1.05 G others in 4, adapters, critics; and 2 bytes of the
    table (128 256 x 4096) as it was."""
    job = replace(SHARED, model=known_model("Llama-3.1-8B"), four_bit=True)
    found = plan(job, Machine(memory=A_GPU), lookup)
    load = next(one for one in found.phases if one.phase.name == "load")
    assert load.memory.activation == 2 * 128_256 * 4096
    base = 6_979_321_856 * 0.5625 + (8_030_261_248 - 6_979_321_856) * 4
    rest = found.devices[0].device.roles
    assert load.memory.static - sum(one.state.weights for one in rest if one.name != "base") == base
    one_row = phase_memory(job, found.strategy, found.devices[0].device, replace(load.phase, tokens=1), 1, lookup).total
    assert one_row == load.memory.total, "it does not depend on lengths"
    assert not any(one.phase.name == "load" for one in plan(SHARED, Machine(memory=A_GPU), lookup).phases)


def test_a_checkpoint_gathers_less_than_training_does() -> None:
    """So it is no phase of its own: one whole tensor in float32, against the layers that training gathers."""
    for name in ("Llama-3.2-3B", "Llama-3.1-8B"):
        sizes = known_model(name).sizes
        for shards in ("zero3", "fsdp"):
            shared = sharded(trained(sizes.parameters, width=4), sizes, shards, 8)  # type: ignore[arg-type]
            assert 4 * sizes.embedding <= shared.gathered


def test_only_weights_that_are_whole_are_autocast_in_hierarchical_training() -> None:
    """Computed in bfloat16 they take less; under FSDP they are computed in float32."""
    full = replace(SHARED, lora_rank=0, batch=4)
    mixed, exact = (replace(full, precision=precision) for precision in ("mixed", "float32"))  # type: ignore[arg-type]
    one, eight = Machine(memory=400 * GIB), Machine(memory=400 * GIB, gpus=8)

    def actor(job: TrainingJob, machine: Machine, shards: Shards) -> float:
        found = plan(job, machine, lookup, checkpoint=False, placement="full", shards=shards)
        device = found.devices[0].device
        phase = next(phase for phase in device.phases if phase.name == "actor")
        return phase_memory(job, found.strategy, device, phase, 4, lookup).activation

    assert actor(mixed, one, "none") < actor(exact, one, "none")
    assert actor(mixed, eight, "zero2") < actor(exact, eight, "zero2")
    assert actor(mixed, eight, "fsdp") == actor(exact, eight, "fsdp")


def test_adapters_have_a_frozen_copy_as_DPOs_reference() -> None:
    found = plan(
        TrainingJob(stage="preference", code=CODES["preference"], model=known_model("Qwen2.5-0.5B"), batch=4),
        Machine(memory=A_GPU),
        lookup,
    )
    states = {role.name: role.state for role in found.devices[0].device.roles}
    assert states["reference"].total == states["policy"].weights == 4 * 16 * known_model("Qwen2.5-0.5B").sizes.adapters


def test_dpo_needs_more_than_bc() -> None:
    sizes = [
        plan(
            TrainingJob(stage=stage, code=CODES[stage], model=known_model("Qwen2.5-0.5B"), lora_rank=0, batch=4),  # type: ignore[arg-type]
            Machine(memory=80 * GIB),
            lookup,
        ).binding.memory.total
        for stage in ("bc", "preference")
    ]
    assert sizes[1] > 1.5 * sizes[0]


def test_remedies_fit_what_they_say() -> None:
    found = plan(replace(SHARED, model=known_model("Llama-3.1-70B")), Machine(memory=70 * GIB), lookup)
    assert not found.fits
    told = remedies(found)
    assert any(line.startswith("a 4-bit base (policy.load_in_4bit=true)") for line in told)
    assert plan(replace(found.job, four_bit=True), found.machine, lookup).fits
    assert not any("(--gpu 80GiB)" in line for line in told), "132 GiB of weights do not fit 80"


def test_where_no_single_change_helps_two_are_tried() -> None:
    found = plan(replace(SHARED, model=known_model("Llama-3.1-70B")), Machine(memory=A_GPU), lookup)
    assert remedies(found)[0].startswith(
        "a 4-bit base on a GPU of 80 GiB (--gpu 80GiB --overrides policy.load_in_4bit=true)"
    )


@pytest.mark.parametrize(
    ("job", "gpus", "named", "says"),
    [
        (SEED, 1, {"placement": "shared"}, "cannot serve three roles"),
        (SHARED, 1, {"placement": "split"}, "in pairs"),
        (SHARED, 3, {"placement": "split"}, "in pairs"),
        (SHARED, 2, {"shards": "zero3"}, "only fully trained weights"),
        (replace(SHARED, stage="bc", critic=None), 2, {"placement": "split"}, "has one model"),
    ],
)
def test_what_cannot_be_is_refused(job: TrainingJob, gpus: int, named: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(job, Machine(memory=A_GPU, gpus=gpus), lookup, **named)  # type: ignore[arg-type]


def test_machines_and_work_are_checked() -> None:
    with pytest.raises(UsageError, match="at least one GPU"):
        Machine(memory=A_GPU, gpus=0)
    with pytest.raises(UsageError, match="leave nothing"):
        Machine(memory=0.2 * GIB)
    with pytest.raises(UsageError, match="4-bit weights cannot be trained"):
        replace(SEED, four_bit=True)
    with pytest.raises(UsageError, match="batch must be at least 1"):
        replace(SEED, batch=0)


def test_the_page_names_every_role_phase_and_the_header() -> None:
    found = plan(SHARED, Machine(memory=A_GPU, gpus=2, kind="a100"), lookup)
    text = "\n".join(report(found))
    for word in (
        "base",
        "actor",
        "guidance",
        "critic",
        "target",
        "rollout, actor",
        "reference",
        "9.15",
        "--gres=gpu:a100:2",
        "--mem=",
        "fits: shared",
    ):
        assert word in text, word
    assert as_json(found)["devices"][0]["phases"]["actor"]["total"] == round(
        next(one for one in found.phases if one.phase.name == "actor").memory.total
    )


def test_the_page_of_a_refusal_names_every_way_tried() -> None:
    text = "\n".join(report(plan(SEED, Machine(memory=A_GPU, gpus=2), lookup)))
    for way in ("tried full:", "tried full, zero2", "tried full, zero3", "tried full, fsdp", "tried split"):
        assert way in text, way


def test_the_page_says_how_to_ask_for_it() -> None:
    """Full copies, sharded, and with frozen weights offloaded; not for a stage without such keys."""
    machine = Machine(memory=141 * GIB, gpus=8)
    full = "hierarchical.placement=full"
    for job, named, words in (
        (SHARED, {"placement": "shared"}, "hierarchical.placement=shared"),
        (SHARED, {"placement": "split"}, "hierarchical.placement=split"),
        (SHARED, {"placement": "full", "offload": True}, f"{full} hierarchical.offload=true"),
        (SEED, {"shards": "zero3"}, f"{full} hierarchical.shards=zero3"),
    ):
        assert f"overrides: {words}" in report(plan(job, machine, lookup, **named))  # type: ignore[arg-type]
    assert "overrides" not in "".join(
        report(plan(replace(SHARED, stage="bc", code=CODES["bc"], critic=None), machine, lookup))
    )


def test_a_way_that_is_named_is_held_to() -> None:
    for offload in (True, False):
        assert (
            plan(SEED, Machine(memory=400 * GIB), lookup, placement="full", offload=offload).strategy.offload == offload
        )
    with pytest.raises(UsageError, match="no way to place hierarchical with placement shared, .* offload True"):
        plan(SHARED, Machine(memory=A_GPU), lookup, placement="shared", offload=True)


def test_what_stands_on_the_cpu_is_read_there() -> None:
    for job in (SHARED, SEED):
        found = plan(job, Machine(memory=400 * GIB), lookup, placement="full", offload=True)
        assert "reference" not in {one.phase.name for one in found.phases}
        assert found.host > plan(job, Machine(memory=400 * GIB), lookup, placement="full", offload=False).host


def test_who_speaks_is_whole_where_who_learns_lies_in_parts() -> None:
    """The actor and the guidance, of 3.2 B float32 weights each, besides their shards."""
    machine = Machine(memory=141 * GIB, gpus=8)
    parts, whole = (plan(SEED, machine, lookup, placement="full", shards=shards) for shards in ("fsdp", "none"))
    rollout = {
        found.strategy.shards: next(one for one in found.phases if one.phase.name == "rollout, actor")
        for found in (parts, whole)
    }
    assert rollout["fsdp"].memory.gradients > 2 * 4 * SEED.model.sizes.parameters > rollout["none"].memory.gradients


def test_parts_of_hierarchical_training_are_float32_all_through() -> None:
    """Under bc's autocast layers are gathered in bfloat16, here in float32: twice two layers, or the table."""
    machine = Machine(memory=141 * GIB, gpus=8)
    states = [
        plan(job, machine, lookup, placement="full", shards="fsdp").devices[0].device.roles[0].state
        for job in (SEED, replace(SEED, stage="bc", code=CODES["bc"], critic=None, value=False, precision="mixed"))
    ]
    assert states[0].gathered == 2 * states[1].gathered and states[0].static == states[1].static


FUSED_ALONE = 36.5
"""GiB on which FULL fits only with the fused optimizer."""
FULL = TrainingJob(
    stage="hierarchical",
    code=CODES["hierarchical"],
    model=known_model("Llama-3.2-1B"),
    lora_rank=0,
    precision="float32",
)


def told(job: TrainingJob, size: float) -> list[str]:
    found = plan(job, Machine(memory=size * GIB, gpus=1), lookup)
    assert not found.fits
    return remedies(found)


def test_an_optimizer_is_advised_by_its_key_and_the_key_does_it() -> None:
    advised = [line for line in told(FULL, FUSED_ALONE) if "temporaries" in line]
    assert len(advised) == 1 and "(hierarchical.optimizer=adamw_fused)" in advised[0]
    found = re.search(r"\((hierarchical\.\S+)\)", advised[0])
    assert found is not None
    config = load(None, ["policy.model_name=Llama-3.2-1B", found[1]])
    assert job_of_hierarchical(config.policy, config.hierarchical, "").optimizer == "adamw_fused"


@pytest.mark.parametrize("stage", ["bc", "preference", "verifier"])
def test_8_bit_moments_are_advised_by_their_key_and_the_key_does_it(stage: StageName) -> None:
    fits = replace(FULL, stage=stage, code=CODES[stage], critic=None, optimizer="adamw_8bit")
    size = next(gib for gib in range(8, 40, 4) if plan(fits, Machine(memory=gib * GIB), lookup).fits)
    (advised,) = [line for line in told(replace(fits, optimizer="adamw"), size) if "optimizer" in line]
    found = re.search(r"8-bit moments \((training\.\S+)\)", advised)
    assert found is not None
    config = load(None, ["policy.model_name=Llama-3.2-1B", found[1]])
    assert job_of_stage(config, stage, "").optimizer == "adamw_8bit"


def test_a_change_that_cannot_be_measured_is_no_remedy() -> None:
    """The other remedies are named."""

    def some(case: MeasuredCase) -> MeasuredMemory:
        if case.rank:
            raise UnmeasurableError("adapters do not run on tensors without data")
        return lookup(case)

    found = plan(FULL, Machine(memory=FUSED_ALONE * GIB), some)
    advised = remedies(found)
    assert advised and not any("policy.lora_r=16" in line for line in advised)


def test_an_optimizer_that_a_stage_has_not_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match="--optimizer adamw_8bit: hierarchical is not trained by it; .*adamw_fused"):
        replace(FULL, optimizer="adamw_8bit")
    with pytest.raises(UsageError, match="--optimizer adamw_fused: bc is not trained by it; .*paged_adamw_8bit"):
        replace(FULL, stage="bc", critic=None, optimizer="adamw_fused")
    with pytest.raises(UsageError, match="shards zero3: .*no 8-bit optimizer"):
        job = replace(FULL, stage="bc", critic=None, optimizer="adamw_8bit")
        plan(job, Machine(memory=80 * GIB, gpus=2), lookup, shards="zero3")

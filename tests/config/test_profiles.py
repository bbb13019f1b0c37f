"""Profiles: their settings, the precedence over them, and the profile for a model's size."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from r2v.config import Config, identity, load
from r2v.config.profiles import PROFILES
from r2v.errors import UsageError
from r2v.memory.model_registry import MODEL_CONFIGS
from r2v.memory.models import counted
from r2v.memory.planner.training_job import Machine
from r2v.memory.profile_of_model import configured, require_settings
from r2v.memory.report import plan_stages
from r2v.memory.sizes import parse_size
from r2v.pipeline.graph import selection
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.jobs_to_do import require_worlds
from tests.memory.measuring import lookup, measure

LLAMA = "policy.model_name=meta-llama/Llama-3.2-1B-Instruct"
LARGEST = {
    "tiny": "tiny",
    "lora-0.5b": "Qwen/Qwen3-0.6B",
    "lora-1b": "meta-llama/Llama-3.2-3B",
    "lora-8b": "microsoft/phi-4",
    "qlora-8b": "Qwen/Qwen3-14B",
    "full-1b": "meta-llama/Llama-3.2-3B",
}
"""A large model for each profile."""


def test_the_default_is_tiny_and_as_it_was() -> None:
    assert load() == configured() == Config()
    assert PROFILES["tiny"].values == {}
    for name in ("policy", "training", "inference"):
        assert identity(getattr(load(None, ["profile=tiny"]), name)) == identity(getattr(Config(), name))


def test_a_file_wins_over_the_profile_and_an_override_over_both(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("profile: lora-8b\ntraining: {num_epochs: 1}\npolicy: {lora_r: 4}\n")
    config = load(file, ["policy.max_seq_len=2048"])
    assert (config.training.num_epochs, config.policy.lora_r, config.policy.max_seq_len) == (1, 4, 2048)
    assert (config.training.lr, config.training.phase("verifier").lr) == (1e-4, 1e-4)
    assert load(file, ["profile=full-1b"]).training.lr == 1e-5, "the last one named"
    assert load(file, ["profile=auto"]).training.lr == Config().training.lr


def test_paid_small_goes_with_the_size_of_any_model() -> None:
    words = ["profile=paid-small", "teacher.provider=openai", "teacher.model_name=gpt-6.1-terra"]
    sized = configured(None, [*words, "policy.model_name=meta-llama/Llama-3.2-1B-Instruct"])
    assert sized.profile == "paid-small+lora-1b"
    assert (sized.training.lr, sized.policy.lora_r, sized.router.num_tasks) == (2e-4, 16, 20)
    pair = configured(None, [*words, "policy.provider=openai", "policy.model_name=gpt-6-luna", "router.num_tasks=5"])
    assert (pair.profile, pair.teacher.max_usd, pair.router.num_tasks) == ("paid-small", 20, 5)


def test_a_profile_by_another_name_or_by_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="profile.*lora-0.5b"):
        load(None, ["profile=lora-2b"])
    with pytest.raises(UsageError, match="profile: must be a name of its own, got a reference"):
        load(None, ["policy.model_name=lora-8b", "profile=${policy.model_name}"])


@pytest.mark.parametrize(
    ("overrides", "profile"),
    [
        (["policy.model_name=Qwen/Qwen2.5-0.5B"], "lora-0.5b"),
        ([LLAMA], "lora-1b"),
        (["policy.model_name=Qwen/Qwen3-8B"], "lora-8b"),
        (["policy.model_name=Qwen/Qwen3-8B", "policy.load_in_4bit=true", "policy.lora_r=16"], "qlora-8b"),
        ([LLAMA, "policy.lora_r=0"], "full-1b"),
    ],
)
def test_a_model_begins_from_the_profile_for_its_size_and_one_line_says_so(
    overrides: list[str], profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="r2v")
    config = configured(None, overrides)
    assert config == load(None, [f"profile={profile}", *overrides])
    assert config.training.lr < 1e-3
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"  profile chosen: profile={profile} ")


def test_a_learning_rate_of_ones_own_or_a_profile_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    rates = ["training.lr=2e-5", "training.verifier.lr=1e-5", "training.preference.lr=1e-6"]
    assert configured(None, [LLAMA, *rates]) == load(None, [LLAMA, *rates])
    assert configured(None, [LLAMA, "profile=tiny"]).training.lr == Config().training.lr
    assert not caplog.records
    configured(None, [LLAMA, "training.lr=2e-5", "training.verifier.lr=1e-5"])
    assert "keys=training.preference.lr remedy=" in caplog.text


def test_a_model_whose_size_is_not_known_is_trained_by_nobody_and_refused_with_the_profiles() -> None:
    unknown = configured(None, ["policy.model_name=acme/Giraffe-9B"])
    with pytest.raises(UsageError, match="its size is not known here, .* set profile to one of tiny, lora-0.5b"):
        require_settings(unknown)
    with pytest.raises(UsageError, match="its size is not known here"):
        require_worlds(unknown, [job("bc")])
    require_settings(configured(None, ["policy.model_name=acme/Giraffe-9B", "training.lr=1e-5"]))
    assert configured(None, ["policy.model_name=acme/Giraffe-9B", "profile=lora-8b"]).policy.lora_r == 16


def test_a_model_that_no_profile_is_made_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no profile is made for 32.8 B parameters; .* begin from one"):
        require_settings(configured(None, ["policy.model_name=Qwen/Qwen3-32B"]))
    with pytest.raises(UsageError, match=r"no profile is made for 8.2 B parameters trained whole"):
        require_settings(configured(None, ["policy.model_name=Qwen/Qwen3-8B", "policy.lora_r=0"]))


@pytest.mark.parametrize("name", PROFILES)
def test_every_stage_of_a_profile_fits_its_card(name: str) -> None:
    """With the largest model of the profile, or one near that size."""
    profile = PROFILES[name]
    config = load(None, [f"profile={name}", f"policy.model_name={LARGEST[name]}"])
    card = Machine(memory=parse_size(profile.card))
    stages = {row.name: (row.memory, card) for row in selection(config)[0]}
    for stage in plan_stages(config, stages, measure, lookup):
        assert stage.plan is None or stage.plan.fits, stage.stage


def test_the_models_beside_the_profiles_are_of_their_sizes() -> None:
    for name, profile in PROFILES.items():
        if profile.largest and name != "tiny":
            assert counted(LARGEST[name]).total > profile.largest / 2
    sizes = [profile.largest for profile in PROFILES.values() if profile.largest]
    assert sizes == sorted(sizes) and set(LARGEST.values()) - {"tiny"} <= set(MODEL_CONFIGS)

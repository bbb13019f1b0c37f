"""Behaviour cloning with TRL on a real two-layer model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import Phase, load
from r2v.config.methods import registry
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.errors import EmptyResult, EnvironmentFault, InputError, Interrupted, UsageError
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.policy.training.bc import IGNORED, build_rows, check_clonable, train_bc
from r2v.policy.training.fit import schedule
from r2v.randomness import generator
from r2v.storage.checkpoint import SEAL, seal
from r2v.storage.files import content_sha256
from tests import tiny_models
from tests.storage.test_checkpoint import files_of_at_most
from tests.trust import drawn

from ..stopping import stopped_by_a_signal

pytestmark = pytest.mark.numerical

PHASE = Phase(
    num_epochs=2,
    lr=5e-3,
    batch_size=4,
    gradient_accumulation_steps=1,
    weight_decay=0.0,
    warmup_ratio=0.05,
    grad_clip=1.0,
    save_steps=4,
    max_examples=None,
)


def _episode(i: int, *, steps: int = 3, words: int = 6) -> Episode:
    """Return an episode of a page of words; the right action repeats the word after the goal's on the page, or any
    fixed one."""
    draw = generator("episode", i)
    pages = [" ".join(f"w{draw.randrange(48)}" for _ in range(draw.randint(1, words))) for _ in range(steps)]
    return Episode(
        episode_id=f"t{i}/s1",
        success=True,
        metadata=EpisodeMetadata(task_id=f"t{i}", goal=f"open w{i % 48}", benchmark="toy", split="train"),
        steps=tuple(
            Step(
                step_idx=s,
                observation=Observation(raw_text=page),
                action=Action(raw_text=f"get w{(i + s) % 48}" + " done" * (i % 3)),
            )
            for s, page in enumerate(pages)
        ),
    )


def _loaded(seed: int = 0) -> Loaded:
    tokenizer = tiny_models.tokenizer()
    return Loaded(model=tiny_models.model(len(tokenizer), seed, torch.float32), tokenizer=tokenizer, name="toy")


def _encoder(max_seq_len: int = 96, reserve: int = 6) -> Encoder:
    return Encoder(tiny_models.tokenizer(), max_seq_len=max_seq_len, reserve=reserve)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: content_sha256(path) for path in sorted(folder.iterdir())}


def test_loss_on_action_tokens_and_only_there() -> None:
    """1,000 episodes of random lengths, over-long ones included: every action with its end token carries loss once per
    step, every other token is ignored, and no row is too long."""
    encoder = _encoder()
    for i in range(1000):
        draw = generator("answers", i)
        episode = _episode(i, steps=draw.randint(1, 6), words=draw.randint(1, 60))
        built = build_rows([episode], encoder)
        assert built.dropped == 0 and sum(row.steps for row in built.rows) == len(episode.steps)
        targets = [token for step in episode.steps for token in encoder.action_ids(step.action.raw_text)]
        assert [label for row in built.rows for label in row.labels if label != IGNORED] == targets
        for row in built.rows:
            assert len(row.ids) == len(row.labels) <= encoder.max_seq_len
            assert all(label in (IGNORED, token) for label, token in zip(row.labels, row.ids, strict=True))


def test_whole_episode_rows_contain_each_steps_prompt() -> None:
    encoder, episode = _encoder(200), _episode(4, steps=5)
    (row,) = build_rows([episode], encoder).rows
    observations = [step.observation.raw_text for step in episode.steps]
    actions = [step.action.raw_text for step in episode.steps]
    for t, action in enumerate(actions):
        prompt = encoder(build_messages(episode.metadata.goal, observations[: t + 1], actions[:t]))
        assert row.ids[: len(prompt)] == prompt
        assert row.labels[len(prompt) :][: len(encoder.action_ids(action))] == encoder.action_ids(action)


def test_a_step_that_cannot_fit_is_dropped_and_counted() -> None:
    long = _episode(1)
    long = replace(long, metadata=replace(long.metadata, goal=" ".join(["w1"] * 100)))
    built = build_rows([long, _episode(2)], _encoder())
    assert built.dropped == 3 and sum(row.steps for row in built.rows) == 3


def test_overfits_32_examples(tmp_path: Path) -> None:
    episodes = [_episode(i, steps=1) for i in range(32)]
    phase = replace(PHASE, num_epochs=70, lr=1e-2, batch_size=8, save_steps=1000)
    report = train_bc(episodes, _loaded(), _encoder(), phase, tmp_path, seed=0)
    assert report["losses"][-1]["loss"] < 0.01
    assert report["train_match"]["exact"] == 1.0
    assert json.loads((tmp_path / "bc_report.json").read_text()) == report


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"success": False}, "failed"),
        ({"metadata": replace(_episode(7).metadata, split="evaluation")}, "split evaluation"),
        ({"metadata": replace(_episode(7).metadata, split=None)}, "split None"),
        ({"construction": "replace"}, "construction replace"),
    ],
)
def test_what_must_not_be_learnt_from_is_refused(change: dict[str, object], problem: str, tmp_path: Path) -> None:
    bad = replace(_episode(7), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"t7/s1: .*{problem}") as refused:
        train_bc([_episode(1), bad], _loaded(), _encoder(), PHASE, tmp_path, seed=0)
    assert refused.value.exit_code == 3
    check_clonable([_episode(1)])
    check_clonable([replace(_episode(7), construction="replace")], replaced=True)


def test_the_cloning_of_the_ablation_dpo_from_base_moves_no_weight(tmp_path: Path) -> None:
    """An update of one example, of a size below the spacing of the weights."""
    cloning = load(None, registry().rows["dpo_from_base"].overrides).training.phase("bc")
    loaded = _loaded()
    before = {name: weight.detach().clone() for name, weight in loaded.model.named_parameters()}
    report = train_bc([_episode(1), _episode(2)], loaded, _encoder(), cloning, tmp_path, seed=0)
    assert report["n_rows"] == 1
    for name, weight in loaded.model.named_parameters():
        assert torch.allclose(weight, before[name], rtol=torch.finfo(weight.dtype).eps, atol=2e-12), name


def test_words_that_the_policy_cannot_say_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = _episode(1, steps=1)
    strange = replace(known, metadata=replace(known.metadata, goal=" ".join(["mend"] * 30)))
    for name, episode in (("known", known), ("strange", strange)):
        train_bc([episode], _loaded(), _encoder(), replace(PHASE, num_epochs=1), tmp_path / name, seed=0)
        assert ("model=toy unknown_tokens=" in caplog.text) == (name == "strange")


def test_nothing_left_is_an_empty_result(tmp_path: Path) -> None:
    long = _episode(1)
    long = replace(long, metadata=replace(long.metadata, goal=" ".join(["w1"] * 100)))
    with pytest.raises(EmptyResult, match="3 steps dropped"):
        train_bc([long], _loaded(), _encoder(), PHASE, tmp_path, seed=0)


def test_same_seed_same_bytes_and_a_resumed_run_too(tmp_path: Path) -> None:
    """Killed right after a checkpoint, with the next one torn, the rest of the run gives the same weights."""
    episodes = [_episode(i) for i in range(16)]
    once, twice, killed = tmp_path / "once", tmp_path / "twice", tmp_path / "killed"
    report = train_bc(episodes, _loaded(), _encoder(), PHASE, once, seed=3)
    assert (once / "checkpoint-latest").readlink() == Path("checkpoint-8")
    shutil.copytree(once / "checkpoint-4", killed / "checkpoint-4")
    (killed / "checkpoint-latest").symlink_to("checkpoint-4")
    (killed / "checkpoint-8").mkdir()
    (killed / "checkpoint-8" / "model.safetensors").write_bytes(b"torn")
    resumed = train_bc(episodes, _loaded(), _encoder(), PHASE, killed, seed=3)
    assert train_bc(episodes, _loaded(), _encoder(), PHASE, twice, seed=3) == report == resumed
    assert _files(once / "final") == _files(twice / "final") == _files(killed / "final")
    assert (
        train_bc(episodes, _loaded(), _encoder(), PHASE, tmp_path / "other", seed=4)["weights_sha256"]
        != report["weights_sha256"]
    )


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished cloning with checkpoints of updates 4 and 8."""
    folder = tmp_path_factory.mktemp("cloned")
    train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), PHASE, folder, seed=3)
    return folder


CHECKPOINT_FILES = ["config.json", "model.safetensors", "optimizer.pt", "pending.pt", "rng_state.pth", "scheduler.pt"]
CHECKPOINT_FILES += [SEAL, "tokenizer.json", "trainer_state.json", "training_args.bin"]


@pytest.mark.parametrize("name", drawn(CHECKPOINT_FILES, 2, "bc checkpoint"))
def test_a_damaged_checkpoint_costs_updates_and_no_bit(
    name: str, cloned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(cloned, tmp_path, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "final")
    broken = tmp_path / "checkpoint-8" / name
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), PHASE, tmp_path, seed=3)
    assert _files(tmp_path / "final") == _files(cloned / "final")
    [line] = [record.getMessage() for record in caplog.records if record.name == "r2v.storage.checkpoint"]
    assert str(broken) in line and "resume=checkpoint-4" in line


def test_a_checkpoint_knows_every_file_of_it(cloned: Path) -> None:
    """So that a test that damages each of them omits none."""
    present = {path.name for path in (cloned / "checkpoint-8").iterdir()}
    assert present - {SEAL} == set(json.loads((cloned / "checkpoint-8" / SEAL).read_text()))
    assert set(CHECKPOINT_FILES) <= present


class _Payload:
    """A pickle that runs a command when a plain unpickler reads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.mark}",)


STRANGE = ["model.safetensors", "optimizer.pt", "pending.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]


@pytest.mark.parametrize("name", drawn(STRANGE, 3, "strange checkpoint"))
@pytest.mark.filterwarnings("ignore")
def test_a_strangers_checkpoint_runs_nothing_and_is_one_line(name: str, cloned: Path, tmp_path: Path) -> None:
    """Its hashes are right, its files are not."""
    import torch

    shutil.copytree(cloned / "checkpoint-4", tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-latest").symlink_to("checkpoint-4")
    mark = tmp_path / "mark"
    if name.endswith("json"):
        (tmp_path / "checkpoint-4" / name).write_text("[")
    else:
        torch.save(_Payload(mark), tmp_path / "checkpoint-4" / name)
    seal(tmp_path / "checkpoint-4")
    with pytest.raises(InputError, match="checkpoint-4: is no checkpoint of this training") as refused:
        train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), PHASE, tmp_path, seed=3)
    assert "\n" not in str(refused.value) and not mark.exists()


@pytest.mark.parametrize("change", [{"weight_decay": float("nan")}, {"lr": 1e30, "grad_clip": 0.0}])
def test_a_training_that_diverges_is_one_sentence_and_saves_nothing(change: dict[str, float], tmp_path: Path) -> None:
    phase = replace(PHASE, save_steps=1, **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"bc: training has diverged: .* update \d") as refused:
        train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), phase, tmp_path, seed=3)
    assert "training.bc.lr" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "final").exists() and not (tmp_path / "checkpoint-8").exists()


def test_a_disk_that_takes_no_checkpoint_is_one_sentence_and_the_next_start_ends_in_the_same_bits(
    cloned: Path, tmp_path: Path
) -> None:
    with files_of_at_most(20_000), pytest.raises(EnvironmentFault, match="cannot write .*checkpoint-4") as refused:
        train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), PHASE, tmp_path, seed=3)
    assert "\n" not in str(refused.value) and not (tmp_path / "checkpoint-latest").exists()
    train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), PHASE, tmp_path, seed=3)
    assert _files(tmp_path / "final") == _files(cloned / "final")


def test_asked_to_stop_it_keeps_the_update_it_is_in_and_goes_on_from_there(tmp_path: Path) -> None:
    """A signal in the middle costs nothing, although no checkpoint was due."""
    episodes, phase = [_episode(i) for i in range(16)], replace(PHASE, num_epochs=16, save_steps=1000)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    report = train_bc(episodes, _loaded(), _encoder(), phase, whole, seed=3)
    with stopped_by_a_signal(cut), pytest.raises(Interrupted, match=r"bc: stopped after update \d+ of 64") as stopped:
        train_bc(episodes, _loaded(), _encoder(), phase, cut, seed=3)
    kept = int((cut / "checkpoint-latest").readlink().name.removeprefix("checkpoint-"))
    assert stopped.value.exit_code == 75 and 0 < kept < 64 and not (cut / "final").exists()
    assert train_bc(episodes, _loaded(), _encoder(), phase, cut, seed=3) == report
    assert _files(whole / "final") == _files(cut / "final")


def test_8_bit_moments_train_and_a_cut_training_ends_as_a_whole_one(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    episodes, phase = [_episode(i) for i in range(16)], replace(PHASE, optimizer="adamw_8bit")
    tokenizer = tiny_models.tokenizer()

    def clone(folder: Path) -> dict[str, Any]:
        model = tiny_models.model(len(tokenizer), 0, torch.float32, hidden=64)
        return train_bc(
            episodes, Loaded(model=model, tokenizer=tokenizer, name="toy"), _encoder(), phase, folder, seed=3
        )

    report = clone(tmp_path / "whole")
    assert report["losses"][-1]["loss"] < report["losses"][0]["loss"] - 1
    saved = torch.load(tmp_path / "whole" / "checkpoint-4" / "optimizer.pt", weights_only=True)
    moments = {state["__bnb_optimizer_quant_state__"]["state1"].dtype for state in saved["state"].values()}
    assert moments == {torch.uint8, torch.float32}, "small ones keep 32 bits"
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "killed" / "checkpoint-4")
    (tmp_path / "killed" / "checkpoint-latest").symlink_to("checkpoint-4")
    assert clone(tmp_path / "killed") == report


def test_a_checkpoint_between_two_log_entries_loses_nothing_of_the_log(tmp_path: Path) -> None:
    episodes, phase = [_episode(i) for i in range(16)], replace(PHASE, num_epochs=26, save_steps=53)
    report = train_bc(episodes, _loaded(), _encoder(), phase, tmp_path / "once", seed=3)
    assert [entry["step"] for entry in report["losses"]] == [1, *range(2, 105, 2)]
    shutil.copytree(tmp_path / "once" / "checkpoint-53", tmp_path / "killed" / "checkpoint-53")
    (tmp_path / "killed" / "checkpoint-latest").symlink_to("checkpoint-53")
    assert train_bc(episodes, _loaded(), _encoder(), phase, tmp_path / "killed", seed=3) == report


def test_the_newest_checkpoints_are_kept_and_the_link_never_dangles(tmp_path: Path) -> None:
    train_bc([_episode(i) for i in range(16)], _loaded(), _encoder(), replace(PHASE, num_epochs=5), tmp_path, seed=3)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-16",
        "checkpoint-20",
        "checkpoint-latest",
    ]


def test_the_schedule_is_a_permutation_per_epoch_and_blind_to_micro_batches() -> None:
    lengths = [generator("len", i).randint(5, 90) for i in range(100)]
    order = schedule(lengths, replace(PHASE, num_epochs=3), 1)
    assert sorted(order) == sorted(list(range(100)) * 3)
    assert order == schedule(lengths, replace(PHASE, num_epochs=3, batch_size=2, gradient_accumulation_steps=2), 1)
    assert order != schedule(lengths, replace(PHASE, num_epochs=3), 2)
    assert len(schedule(lengths, replace(PHASE, num_epochs=0.5), 1)) == 50
    padded = sum(max(lengths[i] for i in order[s : s + 4]) * 4 for s in range(0, 300, 4))
    assert padded < 1.15 * sum(lengths[i] for i in order)

"""The two training stages: their outputs, their dependencies, their refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v import config as c
from r2v.config import identity
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step, to_line
from r2v.data.tools import TOOLS_FILE, RecordedTool, read_tools, write_tools
from r2v.errors import InputError, UsageError
from r2v.evaluation.acting import acceptance
from r2v.evaluation.acting.acceptance import Verdict, verdict_of
from r2v.pipeline.inputs import require_world
from r2v.policy.export import export
from r2v.policy.load import Loaded, load_policy
from r2v.policy.prompt_encoder import Encoder
from r2v.stages.train_policy import BC, PREFERENCE
from r2v.storage.artifact import ATTEMPT, Artifact, Work, content_files
from r2v.wire.message import ToolSpec
from tests import tiny_models


def _episode(i: int, split: str = "train") -> Episode:
    return Episode(
        episode_id=f"t{i}/s1",
        success=True,
        metadata=EpisodeMetadata(task_id=f"t{i}", goal=f"open w{i}", benchmark="toy", split=split),
        steps=(
            Step(
                step_idx=0, observation=Observation(raw_text=f"w{i + 1} w{i + 2}"), action=Action(raw_text=f"get w{i}")
            ),
        ),
    )


def _artifact(folder: Path, name: str, lines: list[str]) -> Artifact:
    folder.mkdir(parents=True)
    (folder / name).write_text("".join(line + "\n" for line in lines))
    return Artifact(stage="test", fingerprint="", folder=folder, files=content_files(folder))


def _work(folder: Path, **inputs: Artifact) -> Work:
    folder.mkdir(parents=True)
    (folder / ATTEMPT).write_text("{}")
    return Work(folder=folder, fingerprint="f", inputs=inputs, root=folder)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> c.Config:
    folder = tmp_path_factory.mktemp("model") / "base"
    tokenizer = tiny_models.tokenizer()
    export(Loaded(model=tiny_models.model(len(tokenizer), 0, torch.float32), tokenizer=tokenizer, name="base"), folder)
    return c.load(
        None,
        [
            f"policy.model_name={folder}",
            "policy.device=cpu",
            "policy.max_seq_len=64",
            "inference.max_new_tokens=6",
            "training.num_epochs=3",
            "training.bc.batch_size=4",
            "training.preference.num_epochs=1",
            "training.preference.batch_size=4",
            "preference.accept=always",
        ],
    )


@pytest.fixture(scope="module")
def bc(config: c.Config, tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("bc")
    episodes = [_episode(i) for i in range(12)] + [_episode(i, "calibration") for i in range(20, 24)]
    work = _work(folder / "bc", perturb=_artifact(folder / "data", "trajectories.jsonl", [*map(to_line, episodes)]))
    BC.run(BC.sections(config), work)
    return work


def _as_artifact(work: Work) -> Artifact:
    return Artifact(stage="bc", fingerprint="f", folder=work.folder, files=content_files(work.folder))


def test_bc_leaves_checkpoints_weights_and_a_report(config: c.Config, bc: Work) -> None:
    assert (bc.folder / "checkpoint-latest" / "trainer_state.json").exists()
    names = set(content_files(bc.folder))
    assert {"bc_report.json", "final/model.safetensors", "final/config.json", "final/tokenizer.json"} <= names
    assert all(name in ("bc_report.json", "tasks.json", "tools.json") or name.startswith("final/") for name in names)
    report = json.loads((bc.folder / "bc_report.json").read_text())
    assert (report["n_episodes"], report["n_steps"], report["held_out_match"]["n_steps"]) == (12, 12, 4)
    assert bc.summary["weights_sha256"] == report["weights_sha256"]
    assert load_policy(config.policy, bc.folder / "final").tokenizer.chat_template == tiny_models.TEMPLATE


PAIRS = [
    json.dumps(
        {
            "prompt": [{"role": "user", "content": f"open w{i}"}, {"role": "tool", "content": "w1"}],
            "chosen": "get w1",
            "rejected": "close w2",
            "task_id": f"t{i}",
        }
    )
    for i in range(8)
]


def test_preference_starts_from_bc_and_can_be_left_out(config: c.Config, bc: Work, tmp_path: Path) -> None:
    given = {"bc": _as_artifact(bc), "candidates": _artifact(tmp_path / "pairs", "preference_pairs.jsonl", PAIRS)}
    work = _work(tmp_path / "preference", **given)
    PREFERENCE.run(PREFERENCE.sections(config), work)
    report = json.loads((work.folder / "dpo_report.json").read_text())
    assert report["n_pairs"] == report["n_tasks"] == 8 and report["reward_margin"] > 0
    assert report["weights_sha256"] != bc.summary["weights_sha256"]
    without = _work(tmp_path / "without", **given)
    PREFERENCE.run(PREFERENCE.sections(c.load(None, ["preference.enabled=false"])), without)
    final = {name: sha for name, sha in content_files(bc.folder).items() if name.startswith("final/")}
    assert content_files(without.folder) == final


@pytest.mark.parametrize("accepted", [True, False])
def test_what_is_not_accepted_is_thrown_away_and_the_clone_published_to_the_byte(
    accepted: bool, config: c.Config, bc: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def compare(acting: Any, work: Work, **given: Any) -> Verdict:
        asked.update(given, seeds=acting.seeds, bytes=content_files(given["trained"]))
        tasks = [f"t{i}" for i in range(20)]
        return verdict_of(dict.fromkeys(tasks, 0.0), {task: float(accepted) for task in tasks}, given["rule"])

    monkeypatch.setattr(acceptance, "compare_policies", compare)
    pairs = _artifact(tmp_path / "pairs", "preference_pairs.jsonl", PAIRS)
    work = _work(tmp_path / "preference", bc=replace(_as_artifact(bc), summary=bc.summary), candidates=pairs)
    PREFERENCE.run(PREFERENCE.sections(replace(config, preference=c.PreferenceConfig())), work)
    cloned = content_files(bc.folder / "final")
    assert asked["bytes"] != cloned and (asked["limit"], asked["seeds"]) == (None, [11, 12]), "all tasks, two seeds"
    assert content_files(work.folder / "final") == (asked["bytes"] if accepted else cloned)
    assert (work.summary["weights_sha256"] == bc.summary["weights_sha256"]) == (not accepted)
    written = json.loads((work.folder / "acceptance.json").read_text())
    assert (written["accepted"], written["detectable"], written["n_tasks"]) == (accepted, None, 20)


OPEN = RecordedTool(name="open", description="opens", parameters={"type": "object", "properties": {"w": {}}})


def test_the_tools_are_those_that_were_recorded_and_no_world_is_asked(
    config: c.Config, bc: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[ToolSpec, ...]]()
    encoder_of = Encoder.of

    def watched(tokenizer: Any, policy: c.PolicyConfig, reserve: int, tools: tuple[ToolSpec, ...] = ()) -> Encoder:
        asked.append(tools)
        return encoder_of(tokenizer, policy, reserve, tools)

    monkeypatch.setattr(Encoder, "of", watched)
    away = replace(config, env=replace(config.env, benchmark="nowhere.at:All"))
    data = tmp_path / "data"
    _artifact(data, "trajectories.jsonl", [to_line(_episode(i)) for i in range(2)])
    without = Artifact(stage="test", fingerprint="", folder=data, files=content_files(data))
    with pytest.raises(UsageError, match=r"nowhere.at:All"):
        BC.run(BC.sections(away), _work(tmp_path / "world", perturb=without))
    none = replace(away, policy=replace(away.policy, tools="none"))
    BC.run(BC.sections(none), _work(tmp_path / "none", perturb=without))
    write_tools(data / TOOLS_FILE, (OPEN,))
    cloned = _work(tmp_path / "bc", perturb=replace(without, files=content_files(data)))
    require_world(BC.sections(away))
    BC.run(BC.sections(away), cloned)
    assert [[tool.name for tool in tools] for tools in asked] == [[], ["open"]]
    assert read_tools(cloned.folder / TOOLS_FILE) == (OPEN,), "handed on to preference training"


def test_an_evaluation_episode_stops_the_stage(config: c.Config, tmp_path: Path) -> None:
    lines = [to_line(_episode(0)), to_line(_episode(1, "evaluation"))]
    work = _work(tmp_path / "bc", perturb=_artifact(tmp_path / "data", "trajectories.jsonl", lines))
    with pytest.raises(InputError, match="t1/s1: is of the split evaluation"):
        BC.run(BC.sections(config), work)


@pytest.mark.parametrize(
    ("override", "bc_changes", "preference_changes"),
    [
        ("training.bc.lr=1e-2", True, False),
        ("training.preference.lr=1e-2", False, True),
        ("preference.beta=0.5", False, True),
        ("policy.lora_r=8", True, True),
        ("seed=1", True, True),
        ("router.budget=0.3", False, False),
        ("policy.device=cuda", False, False),
        ("training.save_steps=7", False, False),
    ],
)
def test_each_phase_depends_on_its_own_knobs(override: str, bc_changes: bool, preference_changes: bool) -> None:
    base, changed = c.load(None, []), c.load(None, [override])
    assert (identity(BC.sections(base)) != identity(BC.sections(changed))) == bc_changes
    assert (identity(PREFERENCE.sections(base)) != identity(PREFERENCE.sections(changed))) == preference_changes


def test_only_the_effective_batch_counts() -> None:
    one = c.load(None, ["training.bc.batch_size=16", "training.bc.gradient_accumulation_steps=1"])
    four = c.load(None, ["training.bc.batch_size=4", "training.bc.gradient_accumulation_steps=4"])
    assert identity(BC.sections(one)) == identity(BC.sections(four))


def test_planning_loads_nothing_heavy() -> None:
    code = "import sys, r2v.stages.train_policy; print([m for m in ('torch', 'trl', 'peft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

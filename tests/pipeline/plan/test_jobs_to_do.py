"""The jobs that a plan lists, and the reason of each."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.config.methods import registry
from r2v.errors import InputError, UsageError
from r2v.experiments import ablations, shared_chains
from r2v.pipeline.graph import selection
from r2v.pipeline.inputs import bases_of, published
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.plan.jobs_to_do import chain_jobs, plan, require_worlds, touched, waiting
from r2v.pipeline.rows import Job
from r2v.pipeline.run import run_here
from r2v.storage.artifact import fingerprint
from r2v.storage.files import content_sha256
from r2v.storage.model_identity import base_sha256
from tests.pipeline.test_run import LATER, NAMES, SEED_TABLE, small


def states(root: Path, *overrides: str, **options: object) -> dict[str, str]:
    return {step.job.name: step.state for step in plan(small(*overrides), root=root, **options)}  # type: ignore[arg-type]


def test_nothing_is_made_yet(tmp_path: Path) -> None:
    steps = plan(small(), root=tmp_path)
    assert [step.job.name for step in steps] == NAMES
    assert {step.job.name: step.needs for step in steps} == SEED_TABLE
    assert {step.state for step in steps} == {"to do"} and list(tmp_path.iterdir()) == []


def test_what_is_made_is_up_to_date_until_its_configuration_changes(tmp_path: Path) -> None:
    run_here(small(), without=LATER, root=tmp_path)
    assert states(tmp_path, without=LATER) == {"collect": "up to date", "perturb": "up to date"}
    assert states(tmp_path)["bc"] == "to do"
    changed = states(tmp_path, "perturbations.distractor.prob=.9", without=LATER)
    assert changed == {"collect": "up to date", "perturb": "to do"}
    again = plan(small("data.num_episodes=5"), without=LATER, root=tmp_path)
    assert [(step.state, step.why) for step in again][1] == ("to do", "collect is to do")


READ_OF_A_BASE = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")


def test_a_base_that_nobody_hashed_makes_what_reads_it_pending_and_shared_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = tmp_path / "base"
    base.mkdir()
    for name in READ_OF_A_BASE:
        (base / name).write_text("0123456789")
    on_base, reading = f"policy.model_name={base}", [name for name in NAMES if name not in ("collect", "perturb")]

    def recipes() -> dict[str, str]:
        return {step.job.name: step.recipe for step in plan(small(on_base), root=tmp_path)}

    run_here(small(on_base), without=LATER, root=tmp_path)
    steps = {step.job.name: step for step in plan(small(on_base), root=tmp_path)}
    assert [name for name, step in steps.items() if step.state == "up to date"] == ["collect", "perturb"]
    assert steps["bc"].why == steps["verifier"].why == "base not hashed yet"
    assert [name for name, step in steps.items() if not step.recipe] == reading
    while not all(recipes().values()):  # no hash is kept of a file that has just been written
        base_sha256(str(base), hash_weights=True)
    assert [name for name in NAMES if bases_of(job(name).load().sections(small(on_base)))] == reading
    before = recipes()
    for name in READ_OF_A_BASE:
        (base / name).write_text("9876543210")
        while not all((after := recipes()).values()):
            base_sha256(str(base), hash_weights=True)
        assert [job_name for job_name in before if before[job_name] != after[job_name]] == reading, name
        before = after


def test_a_changed_byte_makes_its_job_stale_and_all_behind_it(tmp_path: Path) -> None:
    made = run_here(small(), without=LATER, root=tmp_path)[1].artifact
    path = made.folder / "trajectories.jsonl"
    recorded = made.files["trajectories.jsonl"]
    path.write_bytes(path.read_bytes().replace(b'"success":true', b'"success":false', 1))
    steps = {step.job.name: step for step in plan(small(), root=tmp_path)}
    assert steps["collect"].state == "up to date"
    assert steps["perturb"].state == "stale" and steps["perturb"].spoiled
    for word in (str(path), content_sha256(path)[:12], recorded[:12]):
        assert word in steps["perturb"].why
    assert [name for name in NAMES if steps[name].state == "stale"] == [
        name for name in NAMES if name not in ("collect", "verifier")
    ]
    assert not steps["bc"].spoiled and "perturb is stale" in steps["bc"].why
    with pytest.raises(InputError, match=r"needs perturb: .* artifact.json says .*make it again: `r2v perturb`"):
        plan(small(), start="bc", without=["verifier"], root=tmp_path)


def test_a_changed_byte_of_the_run_itself_is_found(tmp_path: Path) -> None:
    run_here(small(), without=LATER, root=tmp_path)
    path = next((tmp_path / "data/runs").glob("*/trajectories.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"success":true', b'"success":false', 1))
    assert states(tmp_path, without=LATER) == {"collect": "stale", "perturb": "stale"}


def test_a_change_whose_time_was_set_back_is_found_all_the_same(tmp_path: Path) -> None:
    made = run_here(small(), without=LATER, root=tmp_path)[1].artifact
    path = made.folder / "trajectories.jsonl"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"success":true', b'"success":null', 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    assert states(tmp_path, without=LATER)["perturb"] == "stale"


def test_a_stage_alone_takes_the_run_that_its_own_pipeline_collected(tmp_path: Path) -> None:
    """Of two runs of one benchmark not the newest, but the one of this configuration: two chains may collect."""
    mine = run_here(small(), without=NAMES[1:], root=tmp_path)[0].artifact
    run_here(small("data.num_episodes=5"), without=NAMES[1:], root=tmp_path)
    assert published(small(), "collect", tmp_path) == mine
    latest = published(small("data.num_episodes=6"), "collect", tmp_path)
    assert latest.summary["run_ids"] != mine.summary["run_ids"]


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ([], SEED_TABLE),
        (["verifier"], {"candidates": ("bc",)}),
        (["perturb"], {"bc": (), "verifier": ("collect",)}),
        (["candidates"], {"preference": ("bc",), "router_features": ("preference", "verifier")}),
        (
            ["preference"],
            {"router_features": ("verifier",), "router": ("router_features",), "evaluate": ("router", "bc")},
        ),
        (["collect", "perturb"], {"bc": (), "verifier": ()}),
    ],
)
def test_what_is_left_out_owes_no_waiting_but_for_what_is_read(
    without: list[str], expected: dict[str, tuple[str, ...]]
) -> None:
    found = waiting(selection(load(None), without=without)[0])
    assert {name: found[name] for name in expected} == expected


def test_router_stages_wait_for_case_support_where_they_read_it() -> None:
    chain = waiting(selection(load(None, ["router.features=[page,cases]"]))[0])
    usual = waiting(selection(load(None))[0])
    assert chain == {**usual, "case_support": ("bc",), "router_features": ("preference", "case_support")}
    for reader in ("router_features", "router", "evaluate"):
        rows = {row.name: row for row in selection(load(None, ["router.model=case_support"]))[0]}
        assert "case_support" in rows[reader].inputs
        assert "case_support" not in {row.name: row for row in selection(load(None))[0]}[reader].inputs
    imputed = selection(load(None, ["router.model=case_support", "router.label=imputed"]))[0]
    assert waiting(imputed)["router_features"] == ("bc", "perturb", "case_support")


def test_unknown_jobs_and_missing_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean router?"):
        plan(small(), start="rooter", root=tmp_path)
    with pytest.raises(InputError, match="needs "):
        plan(small(), start="router", root=tmp_path)


def test_a_world_that_is_not_there_is_named_before_anything_starts() -> None:
    config = load("configs/webarena/noisy.yaml")
    with pytest.raises(UsageError, match="webarena"):
        require_worlds(config, JOBS)
    with pytest.raises(UsageError, match="webarena"):
        require_worlds(config, [job("perturb")])
    require_worlds(config, [job("bc")])  # it reads the recorded tools
    with pytest.raises(UsageError, match="webarena"):
        require_worlds(config, [job("preference")])
    unseen = load("configs/webarena/noisy.yaml", ["preference.accept=always"])
    require_worlds(unseen, [job("preference")])


def test_which_jobs_a_change_concerns() -> None:
    assert touched(small(), small("training.preference.lr=1e-9")) == {"preference", "ablations"}
    assert (
        touched(
            small(),
            small(
                "rollout.batch_size=3",
                "training.preference.batch_size=8",
                "training.preference.gradient_accumulation_steps=2",
            ),
        )
        == set()
    )


def test_a_usual_job_makes_itself() -> None:
    config = load(None)
    assert chain_jobs("evaluate", config) == [("evaluate", config)]


def test_an_ablation_study_makes_what_changes_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides the study itself, whose jobs are counted by fingerprint."""
    config = load(
        None,
        [
            "ablations.names=[none,with_verifier,no_dpo,no_perturbation,best_of_4,label_episode,beta_02,nothing_held_out]"
        ],
    )
    asked: list[tuple[str, str, Any]] = []

    def run_job(config: Config, row: Job, inputs: Any, **_: Any) -> Any:
        stage = row.load()
        key = fingerprint(row.stage, stage.version, vars(stage.sections(config)), inputs)
        asked.append((row.name, key, identity(config)))
        return SimpleNamespace(artifact=SimpleNamespace(fingerprint=key, data_sha256=key))

    monkeypatch.setattr(shared_chains, "run_job", run_job)
    for chain in (config, *ablations.chains_of(config)):
        shared_chains.make_chains({"chain": chain}, root=tmp_path)
    own = {key for name, key, _ in asked[:9] if name != "evaluate"}
    fresh = {key: (name, whole) for name, key, whole in reversed(asked[9:]) if key not in own}
    found = [(name, identity(whole)) for name, whole in chain_jobs("ablations", config)]
    assert sorted(map(str, found)) == sorted(map(str, fresh.values()))
    assert {name for name, _ in found} >= {"perturb", "bc", "candidates", "preference", "router", "evaluate"}


def test_a_changed_configuration_is_the_one_that_its_overrides_load() -> None:
    for row in registry().rows.values():
        changes = (*row.shared, *row.overrides)
        assert ablations._changed(load(None), changes) == load(None, changes)

"""The table of jobs: its order, the jobs that a change makes stale, and the second run of a finished job."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import Config, load
from r2v.data.registry import DataRegistry
from r2v.errors import EmptyResult, InputError, UsageError
from r2v.pipeline.graph import as_configured, downstream, selection
from r2v.pipeline.inputs import place_of, published
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.run import fewer_than_asked, run_here, run_job
from r2v.storage.artifact import fingerprint

NAMES = [item.name for item in selection(Config())[0]]
"""The default chain; a key adds hierarchical training."""

SEED_TABLE = {
    "collect": (),
    "perturb": ("collect",),
    "bc": ("perturb",),
    "verifier": ("collect",),
    "candidates": ("bc", "verifier"),
    "preference": ("candidates",),
    "router_features": ("preference",),
    "router": ("router_features",),
    "evaluate": ("router",),
    "ablations": ("router",),
}


def test_the_table_is_the_seeds() -> None:
    assert {item.name: item.needs for item in selection(Config())[0]} == SEED_TABLE
    assert list(SEED_TABLE) == NAMES
    optional = {"case_support": ("bc",), "router_features": ("preference", "case_support"), "hierarchical": ("bc",)}
    assert {item.name: item.needs for item in JOBS} == SEED_TABLE | optional


def test_jobs_stand_after_what_they_read_and_wait_for_all_of_it() -> None:
    waited: dict[str, set[str]] = {}
    for item in JOBS:
        assert set(item.inputs) <= waited.keys()
        waited[item.name] = set(item.needs).union(*(waited[name] for name in item.needs))
        assert set(item.inputs) <= waited[item.name] | {"evaluate"}, f"{item.name} reads what it does not wait for"


def test_hierarchical_training_is_asked_for_and_starts_from_bc_or_a_model_of_its_own() -> None:
    for start, needs in (("bc", ("bc",)), ("model", ())):
        config = load(None, ["hierarchical.enabled=true", f"hierarchical.start={start}"])
        wanted, given = selection(config)
        assert (wanted[-1].name, wanted[-1].needs, given) == ("hierarchical", needs, [])
    with pytest.raises(UsageError, match="hierarchical.enabled=false"):
        selection(Config(), start="hierarchical")


@pytest.mark.parametrize(
    ("methods", "needs", "asks"),
    [
        ("slm_base", (), False),
        ("slm_base,llm_only", (), True),
        ("llm_only", (), True),
        ("slm_only", ("router",), False),
        ("slm_base,r2v", ("router",), True),
        ("slm_bc_only,best_of_k", ("router",), False),
        ("oracle_router", ("router",), True),
    ],
)
def test_an_evaluation_rests_on_what_its_methods_use(methods: str, needs: tuple[str, ...], asks: bool) -> None:
    config = load(None, [f"evaluation.methods=[{methods}]"])
    item = as_configured(config, job("evaluate"))
    assert (item.needs, bool(item.also_reads)) == (needs, bool(needs))
    assert item.load().sections(config).asks_teacher == asks


def test_unknown_jobs_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no job evaluat; did you mean evaluate?"):
        job("evaluat")
    with pytest.raises(UsageError, match="did you mean verifier?"):
        run_here(Config(), without=["verifyer"])


def test_downstream() -> None:
    assert downstream(["router"]) == {"router", "evaluate", "ablations"}
    assert downstream(["collect"]) == {item.name for item in JOBS}
    assert downstream(["ablations"]) == {"ablations"}


@cache
def own_keys(*overrides: str) -> dict[str, str]:
    """Return each job's fingerprint from its sections alone, without inputs."""
    config, found = load(None, overrides), dict[str, str]()
    for item in JOBS:
        stage = item.load()
        sections = stage.sections(config)
        fields = [field for field in dataclasses.fields(sections) if not field.metadata.get("runtime")]
        values = {field.name: getattr(sections, field.name) for field in fields}
        found[item.name] = fingerprint(item.stage, stage.version, values, {})
    return found


ALL = {item.name for item in JOBS}
TOUCHED = {
    "router.l2=3": {"router", "evaluate"},
    "router.budget=.5": {"router", "evaluate"},
    "router.label=episode": {"router_features", "router", "evaluate"},  # features are of rounds under the router so far
    "router.features=[uncertainty]": {"router_features", "router", "evaluate"},
    "router.num_tasks=3": {"router_features", "router", "evaluate"},
    "training.bc.lr=1e-9": {"bc"},
    "training.preference.lr=1e-9": {"preference"},
    "training.verifier.lr=1e-9": {"verifier"},
    "training.lr=1": {"bc"},
    "preference.beta=3": {"preference"},
    "preference.enabled=false": {"preference"},
    "preference.min_value_gap=.9": {"candidates", "preference"},
    "candidates.num_samples=9": {"candidates"},
    "candidates.num_folds=3": {"candidates", "verifier"},
    "candidates.continuation=slm": {"candidates"},
    "perturb.constructions=[]": {"perturb"},
    "data.seeds=[5]": {"collect"},
    "data.num_episodes=3": {"collect"},
    "evaluation.seeds=[9]": {"evaluate"},
    "evaluation.bootstrap=7": {"evaluate"},
    "data.perturbation_seeds.eval=[5]": {"evaluate"},
    "inference.num_candidates=9": {"evaluate"},
    "verifier.num_tasks=3": {"verifier"},
    "inference.max_steps=3": ALL - {"bc", "case_support", "hierarchical"},
    "env.options.num_tasks=7": ALL - {"bc", "case_support", "hierarchical"},
    "preference.accept=always": {"preference"},
    "preference.accept_seeds=[5]": {"preference"},
    "anyway=true": set(),
    "hierarchical.gamma=.5": {"hierarchical"},
    "hierarchical.micro_batch=3": set(),
    "hierarchical.enabled=true": set(),
    "policy.lora_r=4": ALL - {"collect", "perturb", "case_support"},
    "rollout.workers=7": set(),
    "rollout.batch_size=3": set(),
    "prefix=x": set(),
    "run.notes=x": set(),
    "policy.device=cuda": set(),
    "training.save_steps=7": set(),
}


@pytest.mark.parametrize("override", TOUCHED)
def test_a_change_touches_the_stages_that_read_it(override: str) -> None:
    """The ablations too, which depend on everything that can change a result."""
    before, after = own_keys(), own_keys(override)
    touched = TOUCHED[override]
    ablated = {"ablations"} if touched - {"hierarchical"} else set()
    assert {name for name in ALL if before[name] != after[name]} == touched | ablated


def test_places_with_and_without_a_prefix() -> None:
    config = load(None, ["data.condition=clean"])
    expected = {
        "perturb": "data/trajectories/desk_clean",
        "bc": "outputs/policy/desk_clean/bc",
        "verifier": "outputs/verifier/desk_clean",
        "candidates": "data/candidates/desk_clean",
        "preference": "outputs/policy/desk_clean/preference",
        "router_features": "data/router_features/desk_clean",
        "router": "outputs/router/desk_clean",
        "evaluate": "results/desk_clean",
        "ablations": "results/ablations/desk",
    }
    assert {name: str(place_of(config, name)) for name in NAMES[1:]} == expected
    mrp = load(None, ["prefix=mrp"])
    found = {name: str(place_of(mrp, name)) for name in ("perturb", "bc", "evaluate", "ablations")}
    assert found == {
        "perturb": "data/mrp/trajectories",
        "bc": "outputs/mrp/policy/bc",
        "evaluate": "results/mrp",
        "ablations": "results/ablations/mrp",
    }


def small(*overrides: str) -> Config:
    return load(
        None,
        [
            "env.benchmark=chain",
            "env.options={num_tasks: 20, length: 3, p_easy: 0.9}",
            "data.seeds=[1]",
            "perturb.constructions=[annotate,insert]",
            *overrides,
        ],
    )


LATER = NAMES[2:]


def test_what_is_up_to_date_is_not_made_again(tmp_path: Path) -> None:
    config = small()
    first = run_here(config, without=LATER, root=tmp_path)
    assert [(done.job, done.fresh) for done in first] == [("collect", True), ("perturb", True)]
    second = run_here(config, without=LATER, root=tmp_path)
    assert [(done.job, done.fresh) for done in second] == [("collect", False), ("perturb", False)]
    assert [done.artifact for done in first] == [done.artifact for done in second]
    place = place_of(config, "perturb", tmp_path)
    assert place.is_symlink() and (place / "trajectories.jsonl").is_file()
    assert published(config, "perturb", tmp_path).data_sha256 == first[1].artifact.data_sha256


def test_a_change_makes_again_what_depends_on_it(tmp_path: Path) -> None:
    run_here(small(), without=LATER, root=tmp_path)
    changed = run_here(small("perturbations.distractor.prob=.9"), without=LATER, root=tmp_path)
    assert [done.fresh for done in changed] == [False, True]
    assert [done.fresh for done in run_here(small(), without=LATER, root=tmp_path)] == [False, False]
    again = run_here(small("data.num_episodes=5"), without=LATER, root=tmp_path)
    assert [done.fresh for done in again] == [True, True]


def test_the_same_in_two_folders(tmp_path: Path) -> None:
    hashes = [
        [done.artifact.data_sha256 for done in run_here(small(), without=LATER, root=tmp_path / name)][1]
        for name in ("one", "two")
    ]
    assert hashes[0] == hashes[1]


def test_equal_content_is_reused_although_it_was_made_anew(tmp_path: Path) -> None:
    """A forced collection gives another run with the same episodes: nothing after it is stale."""
    run_here(small(), without=LATER, root=tmp_path)
    forced = run_here(small(), without=LATER, force=["collect"], root=tmp_path)
    assert [done.fresh for done in forced] == [True, False]
    assert len(DataRegistry(tmp_path / "data").query()) == 2


def test_a_start_in_the_middle_takes_what_is_published(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no done run of chain"):
        run_here(small(), start="perturb", without=LATER, root=tmp_path)
    run_here(small(), without=NAMES[1:], root=tmp_path)
    assert [done.job for done in run_here(small(), start="perturb", without=LATER, root=tmp_path)] == ["perturb"]


@pytest.mark.parametrize(
    ("options", "missing"),
    [({"start": "router"}, "bc"), ({"without": ["verifier"]}, "verifier"), ({"without": ["bc"]}, "bc")],
)
def test_a_missing_input_is_named_before_anything_runs(options: dict[str, Any], missing: str, tmp_path: Path) -> None:
    command = "train_verifier" if missing == "verifier" else "train_policy --stage bc"
    with pytest.raises(InputError, match=f"needs {missing}: .* missing .no artifact.json.: run `r2v {command}` with"):
        run_here(small(), root=tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_result_leaves_no_artifact(tmp_path: Path) -> None:
    config = small("env.options.p_easy=0.0")
    with pytest.raises(EmptyResult, match="none of .* episodes succeeded"):
        run_here(config, without=NAMES[1:], root=tmp_path)
    assert not list(tmp_path.rglob("artifact.json"))


def test_a_result_goes_where_it_is_told(tmp_path: Path) -> None:
    collected = run_here(small(), without=NAMES[1:], root=tmp_path)[0].artifact
    run_job(small(), job("perturb"), {"collect": collected}, root=tmp_path, publish_at=tmp_path / "mine")
    assert (tmp_path / "mine").is_symlink() and not place_of(small(), "perturb", tmp_path).exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["policy.load_in_4bit=true"], "a bundled model is not quantised"),
        (["policy.load_in_4bit=true", "policy.model_name=some/model"], "policy.lora_r is 0"),
        (["verifier.mode=llm_judge"], "a judge needs an LLM"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_before_the_first_is_run(
    changes: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        run_here(load(None, changes), root=tmp_path)
    assert not any(tmp_path.iterdir())


CHAIN = ["env.benchmark=chain", "env.options={num_tasks: 40, length: 2}", "data.seeds=[1]"]


def test_a_count_above_what_there_is_is_said_and_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("r2v"), "propagate", True)
    config = load(None, [*CHAIN, "data.num_episodes=99999999999", "evaluation.num_tasks=100000"])
    with caplog.at_level(logging.INFO, "r2v"):
        [(key, counts)] = fewer_than_asked(config, job("collect")).items()
    assert key == "data.num_episodes" and counts["asked"] == 99999999999 and 0 < counts["played"] < 40
    [line] = set(caplog.messages)
    assert f"key=data.num_episodes asked=99999999999 tasks={counts['played']} benchmark=chain split=train" in line
    assert list(fewer_than_asked(config, job("evaluate"))) == ["evaluation.num_tasks"]


def test_a_count_that_can_be_had_and_none_say_nothing() -> None:
    config = load(None, [*CHAIN, "data.num_episodes=3", "router.num_tasks=2", "router.num_calibration_tasks=1"])
    assert fewer_than_asked(config, job("collect")) == {}
    assert fewer_than_asked(config, job("evaluate")) == {}
    assert fewer_than_asked(config, job("router_features")) == {}
    assert fewer_than_asked(config, job("bc")) == {}


def test_the_artifact_keeps_both_numbers_and_its_content_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["collect", "--overrides", *CHAIN]
    assert main([*words, "data.num_episodes=100000"]) == 0
    assert "all of them are played" in capsys.readouterr().err
    found = published(load(None, [*CHAIN, "data.num_episodes=100000"]), "collect")
    assert found.summary["fewer_than_asked"]["data.num_episodes"]["asked"] == 100000
    assert main(words) == 0
    assert "fewer_than_asked" not in published(load(None, CHAIN), "collect").summary


@pytest.mark.parametrize("options", ["{num_tasks: 0}", "{num_tasks: 1}", "{num_tasks: -5}", "{num_tasks: many}"])
@pytest.mark.parametrize("benchmark", ["desk", "chain"])
def test_no_task_to_play_is_refused_before_a_run_is_begun(
    options: str, benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["collect", "--overrides", f"env.benchmark={benchmark}", f"env.options={options}", "data.split_seed=0"])
    err = capsys.readouterr().err
    if code == 0:  # its one task happens to be for training
        assert options == "{num_tasks: 1}"
        return
    assert code == 2 and "env.options" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_options_outside_their_range_are_named() -> None:
    for options in ("{num_tasks: 30, p_easy: 2}", "{length: 0}", "{hard: 11}", "{p_hard: -1}"):
        with pytest.raises(UsageError, match=r"env.options\.\w+ must be in"):
            fewer_than_asked(load(None, ["env.benchmark=chain", f"env.options={options}"]), job("collect"))

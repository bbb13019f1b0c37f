"""A method's identity holds the settings of its calls and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, InferenceConfig, TeacherConfig
from r2v.config.methods import METHODS
from r2v.envs.chain import ChainBenchmark
from r2v.evaluation.acting.method_identity import MethodIdentity, content_of


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    for name in ("policy", "verifier", "router", "clone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.bin").write_bytes(name.encode())
    for router in ("r2v", "disagreement_router"):
        (tmp_path / "router" / f"{router}.json").write_text(f'"{router}"')
    return {name: tmp_path / name for name in ("policy", "verifier", "router", "clone")}


def identity_of(models: dict[str, Path], config: Config | None = None) -> MethodIdentity:
    return MethodIdentity.of(
        config or Config(),
        ChainBenchmark(num_tasks=2, length=2),
        policy=models["policy"],
        verifier=models["verifier"],
        router=models["router"],
        variants={"slm_bc_only": models["clone"], "slm_base": None},
    )


CHANGES = {
    "policy/weights.bin": set(METHODS) - {"llm_only", "slm_bc_only", "slm_base"},
    "clone/weights.bin": {"slm_bc_only"},
    "verifier/weights.bin": {name for name, method in METHODS.items() if method.routed} | {"best_of_k"},
    "router/r2v.json": {"r2v"},
    "router/disagreement_router.json": {"disagreement_router"},
}


@pytest.mark.parametrize("file", CHANGES)
def test_other_weights_change_the_methods_that_ask_them(file: str, models: dict[str, Path], tmp_path: Path) -> None:
    before = identity_of(models)
    (tmp_path / file).write_text('"other"')
    after = identity_of(models)
    assert {name for name in METHODS if before.method(name, 0.5) != after.method(name, 0.5)} == CHANGES[file]


def test_another_llm_changes_the_methods_that_ask_it(models: dict[str, Path]) -> None:
    before = identity_of(models)
    after = identity_of(models, replace(Config(), teacher=TeacherConfig(temperature=0.5)))
    changed = {name for name in METHODS if before.method(name, 0.5) != after.method(name, 0.5)}
    assert changed == {name for name, method in METHODS.items() if method.asks_llm}


def test_another_world_changes_all_and_a_threshold_the_routed(models: dict[str, Path]) -> None:
    before = identity_of(models)
    after = identity_of(models, replace(Config(), inference=InferenceConfig(max_steps=7)))
    assert all(before.method(name, 0.5) != after.method(name, 0.5) for name in METHODS)
    routed = {name for name in METHODS if before.method(name, 0.5) != before.method(name, 0.6)}
    assert routed == {name for name, method in METHODS.items() if method.routed}
    assert len({str(before.method(name, 0.5)) for name in METHODS}) == len(METHODS)


def test_where_and_how_it_runs_changes_nothing(models: dict[str, Path]) -> None:
    config = Config()
    wide = replace(config, rollout=replace(config.rollout, workers=9, max_conversations=3, batch_size=1))
    assert identity_of(models, wide) == identity_of(models, config)


def test_a_file_a_folder_and_nothing_have_contents(models: dict[str, Path]) -> None:
    found = [content_of(None), content_of(models["policy"]), content_of(models["router"] / "r2v.json")]
    assert found[0] is None and len(set(found)) == 3

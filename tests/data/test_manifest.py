from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from r2v.data.manifest import (
    RUN_ID,
    RunManifest,
    escape_model,
    read_manifest,
    run_prefix,
    time_stamp,
    tools_of_runs,
    write_manifest,
)
from r2v.data.registry import DataRegistry
from r2v.data.tools import RecordedTool, Tools
from r2v.errors import InputError, UsageError
from r2v.storage.artifact_manifest import json_sha256

MODELS = [
    "gpt-4o",
    "claude-3.5-sonnet",
    "meta-llama/Llama-3.1-8B",
    "qwen:7b",
    "my_model",
    "a--b",
    "a---b",
    "-",
    "a-/b",
    "a--2Fb",
    "modèle",
    "x y",
    "a/-b",
    "--",
    "/:",
]


def manifest(folder: Path, **fields: object) -> RunManifest:
    known: dict[str, object] = {
        "run_id": "r",
        "benchmark": "desk",
        "provider": "scripted",
        "model_name": "m",
        "fingerprint": "f",
        "started_at": "s",
        "updated_at": "u",
        "output_dir": folder,
    }
    return RunManifest(**{**known, **fields})  # type: ignore[arg-type]


def test_run_id_of_the_seed() -> None:
    moment = datetime(2026, 2, 18, 21, 0, 12, tzinfo=UTC)
    name = run_prefix("webarena", "openai", "gpt-4o") + time_stamp(moment)
    assert name == "webarena_openai_gpt-4o_20260218T210012"


def test_the_run_id_of_a_benchmark_of_ones_own_has_the_name_of_its_class_once() -> None:
    assert run_prefix("vault:Vault", "lab.teachers:Own", "m") == "vault_own_m_"
    assert run_prefix("examples.own_benchmark:Parcels", "scripted", "m") == "parcels_scripted_m_"


def unescaped(name: str) -> str:
    return re.sub(r"(?:--[0-9A-F]{2})+", lambda m: bytes.fromhex(m[0].replace("--", "")).decode(), name)


@pytest.mark.parametrize("model", MODELS)
def test_hazard6_model_names_come_back_and_fit_the_format(model: str) -> None:
    assert unescaped(escape_model(model)) == model
    assert RUN_ID.fullmatch(run_prefix("Browser-Gym/x", "OpenAI", model) + "20260218T210012-2")


def test_different_models_get_different_names() -> None:
    assert len(set(map(escape_model, MODELS))) == len(MODELS)


def test_a_nameless_run_is_refused() -> None:
    with pytest.raises(UsageError):
        run_prefix("desk", "", "m")


def test_round_trip_follows_a_moved_folder(tmp_path: Path) -> None:
    run = manifest(
        tmp_path,
        config={"a": [1]},
        tags=("x",),
        superseded=({"fingerprint": "g"},),
        n_episodes=4,
        n_success=1,
        n_env_faults=2,
    )
    write_manifest(run)
    assert json.loads((tmp_path / "run_manifest.json").read_text())["success_rate"] == run.success_rate == 0.5
    assert read_manifest(tmp_path) == run
    assert read_manifest(tmp_path.rename(tmp_path.parent / "moved")).output_dir.name == "moved"


def test_nothing_measured_is_no_rate(tmp_path: Path) -> None:
    write_manifest(manifest(tmp_path))
    assert json.loads((tmp_path / "run_manifest.json").read_text())["success_rate"] is None
    assert f"{read_manifest(tmp_path).success_rate:.2%}" == "nan%"


def test_hazard11_unknown_fields_are_kept_and_other_schemas_refused(tmp_path: Path) -> None:
    path = tmp_path / "run_manifest.json"
    write_manifest(manifest(tmp_path))
    record = json.loads(path.read_text())
    del record["sha256"]
    newer = {**record, "gpu": "H200"}
    path.write_text(json.dumps({**newer, "sha256": json_sha256(newer)}))
    with pytest.warns(UserWarning, match="gpu"):
        assert read_manifest(tmp_path).extra == {"gpu": "H200"}
    path.write_text(path.read_text().replace('"schema_version": "1"', '"schema_version": "2"'))
    with pytest.raises(InputError, match="schema_version 2"):
        read_manifest(tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match="not a run manifest"):
        read_manifest(tmp_path)


def _run(root: Path, second: int, provider: str, tools: Tools | None) -> str:
    registry = DataRegistry(root, now=lambda: datetime(2026, 1, 1, second=second, tzinfo=UTC))
    made = {"benchmark": "desk", "provider": provider, "model_name": "m", "fingerprint": "f", "config": {}}
    with registry.begin_run(**made, tools=tools) as run:  # type: ignore[arg-type]
        return run.run_id


def test_executed_runs_say_the_tools_where_there_are_any_and_one_without_leaves_it_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_it, shut = RecordedTool(name="open", description="opens"), RecordedTool(name="shut")
    other = RecordedTool(name="open", description="otherwise")
    given = (("scripted", (open_it,)), ("imported", (shut,)), ("scripted", None), ("scripted", (other, shut)))
    ids = [_run(tmp_path, second, provider, tools) for second, (provider, tools) in enumerate(given)]
    registry = DataRegistry(tmp_path)
    executed, imported, earlier, later = map(registry.get, ids)
    assert tools_of_runs([imported]) == (shut,) and tools_of_runs([executed, imported]) == (open_it,)
    assert tools_of_runs([executed, earlier]) is None
    assert tools_of_runs([executed, later]) == (open_it, shut)
    assert "several definitions, using the first: tools=open" in caplog.text
    assert "tools" not in (tmp_path / "registry.json").read_text()

"""A bundle: the evaluated models, with a card of the executed results, read only if every hash holds."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from r2v.cli.main import main
from r2v.config import load
from r2v.errors import InputError, UsageError
from r2v.pipeline.model_card import model_card, read_table
from r2v.pipeline.write_bundle import write_bundle
from r2v.router.models import load as load_router
from r2v.serve.bundle.manifest import BUNDLE_MANIFEST, BundleManifest, read_bundle, write_bundle_manifest
from r2v.storage.artifact_manifest import Damaged
from tests.trust import MICRO
from tests.trust.alter import BYTES
from tests.trust.kinds import kind_of


@pytest.fixture(scope="module")
def bundle(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "desk"
    write_bundle(load(str(MICRO)), folder, micro_run)
    return folder


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "elsewhere"))


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_holds_the_parts_that_were_evaluated_and_reads_wherever_it_lies(copied: Path, micro_run: Path) -> None:
    read = read_bundle(copied)
    made = read.manifest
    threshold = json.loads((copied / "router" / "threshold.json").read_text())
    assert (made.benchmark, made.base_model, made.weights) == ("desk", "tiny", "full")
    assert (made.threshold, made.llm_call_rate) == (threshold["tau"], threshold["realised"]["llm_call_rate"])
    assert made.files.keys() == set(names(copied)) - {BUNDLE_MANIFEST}
    assert not [name for name in names(copied) if "checkpoint" in name]
    weights = micro_run / "outputs" / "micro" / "policy" / "preference" / "final" / "model.safetensors"
    assert (read.policy / "model.safetensors").read_bytes() == weights.read_bytes()
    assert load_router(read.routers["r2v"], None).feature_version == made.feature_version
    assert {kind_of(f"outputs/bundles/desk/{name}").damage for name in names(copied)} == {"refused"}


def test_the_policy_loads_in_transformers(bundle: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, tokenizer = (kind.from_pretrained(bundle / "policy") for kind in (AutoModelForCausalLM, AutoTokenizer))
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "close the ticket"}], add_generation_prompt=True, return_tensors="pt"
    )
    assert policy.generate(**ids, max_new_tokens=2, do_sample=False).shape[1] == ids["input_ids"].shape[1] + 2


def test_the_card_has_the_head_of_the_hub_and_the_executed_table(bundle: Path, micro_run: Path) -> None:
    text = (bundle / "README.md").read_text()
    head, _, body = text.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(head)["library_name"] == "transformers" and "base_model" not in yaml.safe_load(head)
    table = micro_run / "results" / "micro" / "structured_results" / "main_table.csv"
    rows = [row for row in csv.DictReader(table.open()) if row["seed"] == "all"]
    for row in rows:
        low, high = json.loads(row["success_rate_ci"])
        wanted = (
            f"| {row['condition']} | {row['method']} | {float(row['success_rate']):.3f} | [{low:.3f}, {high:.3f}] |"
        )
        assert wanted in body
    assert body.count("| noisy |") + body.count("| shift |") == len(rows)
    assert read_bundle(bundle).manifest.results_sha256 in body


def test_a_card_of_adapters_names_their_base_and_peft(bundle: Path, micro_run: Path) -> None:
    table = micro_run / "results" / "micro" / "structured_results" / "main_table.csv"
    made = dataclasses.replace(
        read_bundle(bundle).manifest, weights="adapters", base_model="org/base", benchmark="a|b`<script>"
    )
    text = model_card(made, table, 0.95)
    assert "base_model: org/base" in text and "library_name: peft" in text and "peft has to be installed" in text
    assert "<script>" not in text and "a|b" not in text


def test_a_card_tells_chat_servers_the_form_of_thoughts_in_which_the_policy_was_trained(
    bundle: Path, micro_run: Path
) -> None:
    table = micro_run / "results" / "micro" / "structured_results" / "main_table.csv"
    made = read_bundle(bundle).manifest
    assert made.enable_thinking is None and "enable_thinking" not in (bundle / "README.md").read_text()
    text = model_card(dataclasses.replace(made, enable_thinking=False), table, 0.95)
    assert "`enable_thinking=False`" in text and '{"chat_template_kwargs": {"enable_thinking": false}}' in text


def test_two_exports_are_the_same_bytes(bundle: Path, micro_run: Path, tmp_path: Path) -> None:
    write_bundle(load(str(MICRO)), tmp_path / "again", micro_run)
    for name in names(bundle):
        assert (tmp_path / "again" / name).read_bytes() == (bundle / name).read_bytes(), name


@pytest.mark.parametrize(
    "override",
    ["router.features=[progress]", "inference.max_new_tokens=4", "cost.llm.input=9.0", "seed=5"],
)
def test_values_that_did_not_make_the_evaluation_are_refused_in_one_line(
    override: str, micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(micro_run)
    assert main(["export", str(tmp_path / "new"), "--config", str(MICRO), "--overrides", override]) == 2
    key, _, value = override.partition("=")
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"r2v: {key} is .+ in the evaluation and \S*{value.strip('[]')}\S* on the command line", line)
    recorded = re.search(r"use --config (\S+),", line)
    assert recorded and not (tmp_path / "new").exists()
    assert main(["export", str(tmp_path / "new"), "--config", recorded[1]]) == 0


def test_a_forgotten_config_is_refused_and_settings_of_the_machine_are_not(
    micro_run: Path, bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError, match=r"in the evaluation and .* on the command line \(others that differ: .*, \.\.\.\)"
    ):
        write_bundle(load(None, ["prefix=micro"]), tmp_path / "new", micro_run)
    write_bundle(load(str(MICRO), ["rollout.batch_size=3", "hierarchical.critic.lr=9e-4"]), tmp_path / "new", micro_run)
    assert (tmp_path / "new" / "bundle.json").read_bytes() == (bundle / "bundle.json").read_bytes()


@pytest.mark.parametrize("name", ["tmp-again", ".again.draft"])
def test_a_folder_of_the_users_beside_a_bundle_is_no_draft_of_it(micro_run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("mine")
    if name == ".again.draft":
        with pytest.raises(InputError, match=r"\.again\.draft: R2V did not mark it .*; to remove it: rm -r "):
            write_bundle(load(str(MICRO)), tmp_path / "again", micro_run)
    else:
        write_bundle(load(str(MICRO)), tmp_path / "again", micro_run)
        assert read_bundle(tmp_path / "again").policy.is_dir()
    assert [path.name for path in tmp_path.iterdir() if path.name != "again"] == [name]
    assert (tmp_path / name / "notes.txt").read_text() == "mine"


def test_every_file_damaged_in_every_way_is_named_and_nothing_is_read(bundle: Path, tmp_path: Path) -> None:
    for number, (name, how) in enumerate((name, how) for name in names(bundle) for how in BYTES):
        folder = Path(shutil.copytree(bundle, tmp_path / str(number)))
        before = (folder / name).read_bytes()
        BYTES[how](folder / name)
        if (folder / name).is_file() and (folder / name).read_bytes() == before:
            continue  # a file that was empty cannot be emptied
        with pytest.raises(InputError) as refused:
            read_bundle(folder)
        assert Path(name).name in str(refused.value) or "stray" in str(refused.value), (name, how)
        shutil.rmtree(folder)


def test_what_nobody_wrote_there_and_what_is_no_plain_file_is_named(copied: Path) -> None:
    (copied / "policy" / "script.py").write_text("print()")
    with pytest.raises(Damaged, match="script.py"):
        read_bundle(copied)
    (copied / "policy" / "script.py").unlink()
    (copied / "policy" / "script.py").symlink_to("/etc/passwd")
    with pytest.raises(Damaged, match="a link"):
        read_bundle(copied)
    (copied / "policy" / "script.py").unlink()
    os.mkfifo(copied / "pipe")
    with pytest.raises(Damaged, match="a pipe"):
        read_bundle(copied)


def test_every_leaf_of_the_manifest_altered_is_found_even_with_a_new_hash_of_it(copied: Path) -> None:
    """A recomputed hash is accepted for the contents of the manifest, and for no name, type or format."""
    made = json.loads((copied / BUNDLE_MANIFEST).read_text())
    for name in made.keys() - {"sha256"}:
        (copied / BUNDLE_MANIFEST).write_text(json.dumps(made | {name: "other" if name != "benchmark" else "x"}))
        with pytest.raises(Damaged):
            read_bundle(copied)
    manifest = BundleManifest(**{name: value for name, value in made.items() if name != "sha256"})
    for wrong in (
        {"files": manifest.files | {"../outside": "0" * 64}},
        {"files": manifest.files | {"/etc/passwd": "0" * 64}},
        {"files": {**manifest.files, "README.md": "0"}},
        {"format": 2},
        {"threshold": "high"},
        {"sources": {"router": 3}},
    ):
        write_bundle_manifest(copied, dataclasses.replace(manifest, **wrong))  # type: ignore[arg-type]
        with pytest.raises(Damaged):
            read_bundle(copied)


def test_the_command_writes_checks_and_refuses(
    micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(micro_run)
    target = str(tmp_path / "bundle")
    assert main(["export", target, "--config", str(MICRO)]) == 0
    assert "every hash holds" in capsys.readouterr().err
    assert main(["export", target, "--check"]) == 0
    assert main(["export", target, "--config", str(MICRO)]) == 3
    assert "is there already" in capsys.readouterr().err
    (tmp_path / "bundle" / "README.md").write_text("better results\n")
    assert main(["export", target, "--check"]) == 3
    assert "README.md is damaged" in capsys.readouterr().err
    assert main(["export", target, "--format", "atif"]) == 2
    monkeypatch.chdir(tmp_path)
    assert main(["export", "new", "--config", str(MICRO)]) == 3
    assert "needs evaluate" in capsys.readouterr().err and not Path("new").exists() and not Path("tmp-new").exists()
    assert main(["export", "nowhere", "--check"]) == 3


def test_a_table_that_is_none_makes_no_card(tmp_path: Path) -> None:
    for text in ("", "a,b\n1,2\n", "seed,success_rate\nall,high\n"):
        (tmp_path / "main_table.csv").write_text(text)
        with pytest.raises(InputError):
            read_table(tmp_path / "main_table.csv")

"""`r2v import`: a run with a manifest of what others recorded, refused whole where a record is bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.data.manifest import RunManifest
from r2v.data.merge import Source, merge
from r2v.data.registry import DataRegistry
from r2v.data.store import read_episodes
from r2v.errors import InputError
from r2v.evaluation.measures.outcomes import Outcome
from tests.data.interchange.logs import atif, called, chat, lines, trajectory


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def only_run() -> RunManifest:
    (run,) = DataRegistry().query()
    return run


def test_records_become_a_run_with_manifest_and_registry_entry(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.jsonl").write_text(lines(chat(0, resolved=True), chat(1, resolved=False), chat(0, success=None)))
    assert main(["import", "chat.jsonl", "--run-tags", "pilot", "--notes", "first"]) == 0
    run = only_run()
    assert (run.benchmark, run.provider, run.model_name, run.status) == ("logs", "imported", "gpt-x", "done")
    assert [tool.name for tool in run.tools or ()] == ["shell"], "what the logs say could be called"
    assert run.tags == ("imported", "pilot") and run.n_episodes == 3 and run.n_success == 0
    assert "3 of messages" in (err := capsys.readouterr().err) and "none was executed here" in err
    assert "1 say that they succeeded, 1 say that they failed, 1 say neither" in err
    assert "gpt-x" in (table := DataRegistry().summary()) and "%" not in table, "nothing was executed: no rate"
    episodes = read_episodes(run.trajectories)
    assert [e.episode_id for e in episodes] == ["repo__project-0/s0", "repo__project-1/s0", "repo__project-0/s1"]
    assert [e.claims_success for e in episodes] == [True, False, None]
    assert [e.demonstrates for e in episodes] == [True, False, True]
    assert all(not e.executed and not e.success and e.metadata.run_id == run.run_id for e in episodes)
    assert json.loads(Path("data/registry.json").read_text())["runs"]


def test_the_same_content_is_not_imported_twice_wherever_it_lies(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a").mkdir()
    for name in ("a.jsonl", "a/a.jsonl"):
        Path(name).write_text(lines(chat()))
        assert main(["import", name]) == 0
    assert "imported before" in capsys.readouterr().err and only_run().n_episodes == 1


def test_files_of_all_formats_in_a_folder_are_one_run() -> None:
    folder = Path("logs")
    (folder / "deep").mkdir(parents=True)
    (folder / "chat.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(chat()).encode())
    (folder / "list.json").write_text(json.dumps([chat(3), chat(4)]))
    (folder / "one.json").write_text(json.dumps(chat(5)["messages"]))
    (folder / "deep" / "run.traj").write_text(json.dumps(trajectory(), indent=1))
    (folder / "trajectory.json").write_text(json.dumps(atif(), indent=1))
    (folder / "notes.txt").write_text("not read")
    assert main(["import", "logs", "--model", "their-model"]) == 0
    assert only_run().n_episodes == 6 and only_run().model_name == "their-model"
    assert {e.extra["imported"]["format"] for e in read_episodes(only_run().trajectories)} == {
        "messages",
        "atif",
        "sweagent",
    }


def test_parquet_is_read_row_by_row_without_the_nulls_of_its_columns() -> None:
    from pyarrow import Table
    from pyarrow.parquet import write_table

    packed = [
        chat(n) | {"messages": json.dumps(chat(n)["messages"]), "tools": json.dumps(chat(n)["tools"])} for n in (0, 1)
    ]
    write_table(Table.from_pylist(packed), "packed.parquet")
    plain = [{"messages": [m | {"tool_calls": m.get("tool_calls")} for m in chat(n)["messages"]]} for n in (2, 3)]
    write_table(Table.from_pylist(plain), "plain.parquet")
    Path("same.jsonl").write_text(lines(chat(0), chat(1)))
    assert main(["import", "packed.parquet"]) == main(["import", "same.jsonl"]) == 0
    first, second = (read_episodes(run.trajectories) for run in DataRegistry().query())
    assert [e.steps for e in first] == [e.steps for e in second]
    assert main(["import", "plain.parquet"]) == 0


BAD = ('{"messages": [', '{"messages": [], "x": NaN}', '{"patch": "x"}', '{"messages": [{"role": "robot"}]}')


def test_bad_records_are_told_by_file_and_line_and_nothing_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.jsonl").write_text(lines(chat(0)) + "\n" + "\n".join(BAD) + "\n" + lines(chat(1)))
    assert main(["import", "chat.jsonl"]) == 3
    err = capsys.readouterr().err.splitlines()
    told = [line for line in err if "bad record" in line]
    assert [line.split(": ")[1] for line in told] == [f"chat.jsonl:{number}" for number in (3, 4, 5, 6)]
    assert "4 of 6 records are bad" in err[-1] and "--skip-bad" in err[-1] and not Path("data").exists()
    assert main(["import", "chat.jsonl", "--skip-bad"]) == 0
    assert "4 bad records left out" in capsys.readouterr().err and only_run().n_episodes == 2


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nowhere.jsonl"], 3, "no such file or folder"),
        (["empty.jsonl"], 4, "no trajectory in it"),
        (["folder"], 3, "holds no file of"),
        (["broken.parquet"], 3, "not a parquet file"),
        (["nobody/nothing"], 3, "HF_HUB_OFFLINE=1"),
        (["--format", "atif", "chat.jsonl"], 3, "schema_version None"),
        (["chat.jsonl", "--benchmark", "\u2603"], 2, "a run needs a benchmark"),
    ],
)
def test_what_cannot_be_imported_is_one_line(
    words: Sequence[str], code: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("empty.jsonl").touch()
    Path("folder").mkdir()
    Path("broken.parquet").write_bytes(b"PAR1 nonsense PAR1")
    Path("chat.jsonl").write_text(lines(chat()))
    assert main(["import", *words]) == code
    err = capsys.readouterr().err
    assert told in err.splitlines()[-1] and "Traceback" not in err
    assert not list(Path().glob("data/runs/*/trajectories.jsonl"))


def desk_like(number: int) -> dict[str, object]:
    """A log short enough for the bundled student."""
    messages = [
        {"role": "user", "content": f"close ticket {number}"},
        {"role": "assistant", "content": None, "tool_calls": [called("find", f'{{"id":{number}}}', "a")]},
        {"role": "tool", "tool_call_id": "a", "content": f"ticket {number} is open\nowner ann\nroom 17"},
        {"role": "assistant", "content": None, "tool_calls": [called("close", f'{{"id":{number}}}', "b")]},
    ]
    return {"messages": messages}


def test_imported_trajectories_are_perturbed_and_cloned_and_the_failed_ones_are_not() -> None:
    failed = desk_like(99) | {"success": False}
    Path("chat.jsonl").write_text(lines(*map(desk_like, range(6)), failed))
    small = ["training.num_epochs=1", "env.benchmark=logs"]
    assert main(["import", "chat.jsonl"]) == 0
    assert main(["perturb", "--overrides", *small, "perturbations.prompt_injection.prob=1.0"]) == 0
    made = read_episodes(Path("data/trajectories/logs_noisy/trajectories.jsonl"))
    assert sum(e.construction == "native" for e in made) == 6 and any(e.construction == "annotate" for e in made)
    assert all(not e.executed and "99" not in e.metadata.goal for e in made)
    assert main(["train_policy", "--stage", "bc", "--overrides", *small]) == 0
    report = json.loads(Path("outputs/policy/logs_noisy/bc/bc_report.json").read_text())
    assert report["n_episodes"] == len(made) and report["train_match"]["n_steps"] > 0


def test_nothing_that_was_imported_enters_a_table() -> None:
    Path("chat.jsonl").write_text(lines(chat(success=True)))
    assert main(["import", "chat.jsonl"]) == 0
    (episode,) = read_episodes(only_run().trajectories)
    with pytest.raises(InputError, match="was imported, not executed"):
        Outcome.of(episode)
    merged = merge([Source(run_id="a", path=only_run().trajectories)], Path("merged.jsonl"))
    assert not next(merged.iter_episodes()).executed


def test_stages_that_need_a_world_say_that_logs_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.jsonl").write_text(lines(chat()))
    assert main(["import", "chat.jsonl"]) == 0
    asked = {"train_verifier": 3, "collect": 2}
    for command, code in asked.items():
        assert main([command, "--overrides", "env.benchmark=logs"]) == code
        assert "Traceback" not in capsys.readouterr().err


def test_an_imported_task_that_is_measured_on_is_refused_for_training(capsys: pytest.CaptureFixture[str]) -> None:
    from r2v.data.split import split_of
    from r2v.envs.chain import ChainBenchmark

    task = next(t for t in ChainBenchmark(num_tasks=50).tasks() if split_of(t.task_id) == "evaluation")
    record = desk_like(1)
    record["messages"][0]["content"] = task.goal  # type: ignore[index]
    Path("chat.jsonl").write_text(lines(record))
    assert main(["import", "chat.jsonl", "--benchmark", "chain"]) == 0
    assert main(["perturb", "--overrides", "env.benchmark=chain", "env.options.num_tasks=50"]) == 3
    assert task.task_id in capsys.readouterr().err


def test_a_killed_import_is_continued_by_the_same_command() -> None:
    Path("chat.jsonl").write_text(lines(*map(chat, range(5))))
    assert main(["import", "chat.jsonl"]) == 0
    run, manifest = only_run(), only_run().output_dir / "run_manifest.json"
    whole = run.trajectories.read_bytes()
    run.trajectories.write_bytes(whole[: len(whole) // 2])
    record = json.loads(manifest.read_text()) | {"status": "running", "data_sha256": None}
    record.pop("sha256")
    manifest.write_text(json.dumps(record))
    assert main(["import", "chat.jsonl"]) == 0
    assert only_run().status == "done" and run.trajectories.read_bytes() == whole


CACHED = """
import json, sys
from pathlib import Path
from datasets import Dataset, DatasetInfo, SplitDict, SplitInfo
from datasets.arrow_writer import ArrowWriter

rows = Dataset.from_list([json.loads(line) for line in Path("packed.jsonl").read_text().splitlines()])
place = Path("cache/datasets/owner___name/default/0.0.0/0123456789abcdef")
place.mkdir(parents=True)
writer = ArrowWriter(path=str(place / "name-train.arrow"), features=rows.features)
writer.write_table(rows.data.table)
writer.finalize()
splits = SplitDict({"train": SplitInfo("train", num_bytes=1, num_examples=len(rows), dataset_name="name")})
about = {"builder_name": "parquet", "dataset_name": "name", "config_name": "default", "version": "0.0.0"}
DatasetInfo(features=rows.features, splits=splits, **about).write_to_directory(str(place))

from r2v.cli.main import main
sys.exit(main(["import", "owner/name"]))
"""


def test_a_hub_data_set_in_the_cache_is_imported_without_a_network(tmp_path: Path) -> None:
    records = [{"instance_id": f"t{n}", "messages": json.dumps(chat(n)["messages"])} for n in range(3)]
    Path("packed.jsonl").write_text(lines(*records))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [e.episode_id for e in read_episodes(only_run().trajectories)] == ["t0/s0", "t1/s0", "t2/s0"]

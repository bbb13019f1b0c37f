"""`r2v export --trajectories`: episodes in the formats of other tools, without overwriting any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.data.tools import RecordedTool
from tests.data.interchange.logs import chat, lines

TINY = Path(__file__).parents[3] / "r2v" / "bundled" / "weights" / "tiny"
TEMPLATE = (
    "{% for tool in tools %}{{ tool.function.parameters.properties | tojson }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.name }}"
    "{{ c.function.arguments }}{% endfor %};{% endfor %}"
)


@pytest.fixture(autouse=True)
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("chat.jsonl").write_text(lines(chat(0, success=True), chat(1, success=False)))
    assert main(["import", "chat.jsonl"]) == 0
    (run,) = DataRegistry().query()
    return run.run_id


def test_a_run_goes_out_as_messages_and_comes_back_the_same(run_id: str) -> None:
    assert main(["export", "out/there.jsonl", "--trajectories", run_id]) == 0
    records = [json.loads(line) for line in Path("out/there.jsonl").read_text().splitlines()]
    assert [record["messages"] for record in records] == [chat(0)["messages"], chat(1)["messages"]]
    assert main(["import", "out/there.jsonl"]) == 0
    first, second = (list(StoredEpisodes(run.trajectories)) for run in DataRegistry().query())
    assert [e.steps for e in first] == [e.steps for e in second]


def test_a_file_goes_out_as_a_folder_of_atif_documents(run_id: str) -> None:
    path = DataRegistry().get(run_id).trajectories
    assert main(["export", "out", "--trajectories", str(path), "--format", "atif", "--successes"]) == 0
    (document,) = Path("out").iterdir()
    record = json.loads(document.read_text())
    assert record["schema_version"] == "ATIF-v1.7" and record["extra"]["executed"] is False
    assert [step["step_id"] for step in record["steps"]] == list(range(1, len(record["steps"]) + 1))
    assert main(["import", "out", "--model", "again"]) == 0
    back = list(StoredEpisodes(DataRegistry().latest_run("logs", "again").trajectories))
    assert back[0].metadata.goal == "Mend issue 0." and len(back[0].steps) == 4


def test_episodes_of_schema_1_are_read_and_go_out_in_the_schema_of_today() -> None:
    old = Path(__file__).parents[1] / "episodes_schema1.jsonl"  # written at commit 480883e
    assert main(["export", "new.jsonl", "--trajectories", str(old), "--format", "episodes"]) == 0
    assert list(StoredEpisodes(Path("new.jsonl"))) == list(StoredEpisodes(old))
    lines = zip(old.read_text().splitlines(), Path("new.jsonl").read_text().splitlines(), strict=True)
    for before, after in ((json.loads(one), json.loads(other)) for one, other in lines):
        assert before["schema_version"] == "1" and after["schema_version"] == "2"
        assert before == {name: _kept(after[name], before[name]) for name in before} | {"schema_version": "1"}
        assert (after["outcome"], after["steps"][0]["proposal"], after["tokens"]["slm_cached"]) == ("played", None, 0)


def _kept(after: Any, before: Any) -> Any:
    """Return the part of a value that was there before."""
    if isinstance(before, dict):
        return {name: _kept(after[name], before[name]) for name in before}
    if isinstance(before, list):
        return [_kept(*both) for both in zip(after, before, strict=True)]
    return after


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["chat.jsonl", "--trajectories", "RUN"], 3),
        (["data", "--trajectories", "RUN", "--format", "atif"], 3),
        (["new", "--trajectories", "no_such_run"], 3),
        (["new", "--trajectories", "data"], 3),
        (["new", "--trajectories", "chat.jsonl"], 3),
    ],
)
def test_what_is_there_is_not_written_over_and_what_is_no_trajectory_not_read(
    run_id: str, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("chat.jsonl").read_bytes()
    assert main(["export", *(run_id if word == "RUN" else word for word in words)]) == code
    assert "Traceback" not in capsys.readouterr().err
    assert Path("chat.jsonl").read_bytes() == before and not Path("new").exists()


def test_a_run_that_was_played_goes_out_with_its_tools_and_is_loaded_for_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TRL's SFTTrainer does: `datasets` reads the file, the template gets its messages and tools."""
    from datasets import Dataset, load_dataset
    from transformers import PreTrainedTokenizerFast
    from trl.data_utils import apply_chat_template, is_conversational

    tools = tuple(
        RecordedTool(name=n, parameters={"type": "object", "properties": {n: {"type": "string"}}}) for n in "ab"
    )
    registry, made = (
        DataRegistry(),
        {"benchmark": "desk", "provider": "scripted", "model_name": "m", "fingerprint": "f"},
    )
    with registry.begin_run(**made, config={}, tools=tools) as run:  # type: ignore[arg-type]
        for seed, acted in enumerate(('{"tool":"a","a":"x"}', '{"tool":"b","b":3}', "free words")):
            about = EpisodeMetadata(task_id="t", goal="g", benchmark="desk", seed=seed, run_id=run.run_id)
            step = Step(step_idx=0, observation=Observation(raw_text="page"), action=Action(raw_text=acted))
            run.store.append(Episode(episode_id=f"t/s{seed}", metadata=about, steps=(step,), success=seed == 0))
    assert main(["export", "out.jsonl", "--trajectories", run.run_id]) == 0
    lines_out = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [record["success"] for record in lines_out] == [True, False, False]
    assert all([tool["function"]["name"] for tool in record["tools"]] == ["a", "b"] for record in lines_out)
    table = load_dataset("json", data_files="out.jsonl", split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(table, Dataset) and is_conversational(table[0])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    tokenizer.chat_template = TEMPLATE
    texts = [apply_chat_template(row, tokenizer, row["tools"])["text"] for row in table]
    names = '{"a": {"type": "string"}}{"b": {"type": "string"}}'
    assert texts[0] == names + 'user:g\n\npage;assistant:call_0 a{"a":"x"};'
    assert texts[2] == names + "user:g\n\npage;assistant:free words;"
    assert main(["import", "out.jsonl", "--model", "again"]) == 0
    assert [tool.name for tool in DataRegistry().latest_run("logs", "again").tools or ()] == ["a", "b"]

"""`r2v import`: a run with a manifest from others' records, refused as a whole if a record is bad."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from r2v.cli.interchange import IMPORT_FORMATS
from r2v.cli.main import main
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, outcome_of
from r2v.data.interchange.importing import FORMATS, read_source, recognise, rows_of
from r2v.data.interchange.sessions import grouped
from r2v.data.manifest import RunManifest
from r2v.data.merge import Source, merge
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
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
    assert "3 of messages" in (err := capsys.readouterr().err) and "none executed here" in err
    assert "1 say that they succeeded, 1 say that they failed, 1 say neither" in err
    assert "gpt-x" in (table := DataRegistry().summary()) and "%" not in table, "nothing was executed: no rate"
    episodes = list(StoredEpisodes(run.trajectories))
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
    assert {e.extra["imported"]["format"] for e in list(StoredEpisodes(only_run().trajectories))} == {
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
    first, second = (list(StoredEpisodes(run.trajectories)) for run in DataRegistry().query())
    assert [e.steps for e in first] == [e.steps for e in second]
    assert main(["import", "plain.parquet"]) == 0


BAD = ('{"messages": [', '{"messages": [], "x": NaN}', '{"patch": "x"}', '{"messages": [{"role": "robot"}]}')


def test_bad_records_are_told_by_file_and_line_and_nothing_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.jsonl").write_text(lines(chat(0)) + "\n" + "\n".join(BAD) + "\n" + lines(chat(1)))
    assert main(["import", "chat.jsonl"]) == 3
    err = capsys.readouterr().err.splitlines()
    told = [line for line in err if "bad record" in line]
    assert [line.split(": ")[1] for line in told] == [f"error=chat.jsonl:{number}" for number in (3, 4, 5, 6)]
    assert "4 of 6 records are bad" in err[-1] and "--skip-bad" in err[-1] and not Path("data").exists()
    assert main(["import", "chat.jsonl", "--skip-bad"]) == 0
    assert "bad_skipped=4" in capsys.readouterr().err and only_run().n_episodes == 2


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
    """Return a log short enough for the bundled student."""
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
    made = list(StoredEpisodes(Path("data/trajectories/logs_noisy/trajectories.jsonl")))
    assert sum(e.construction == "native" for e in made) == 6 and any(e.construction == "annotate" for e in made)
    assert all(not e.executed and "99" not in e.metadata.goal for e in made)
    assert main(["train_policy", "--stage", "bc", "--overrides", *small]) == 0
    report = json.loads(Path("outputs/policy/logs_noisy/bc/bc_report.json").read_text())
    assert report["n_episodes"] == len(made) and report["train_match"]["n_steps"] > 0


def test_nothing_that_was_imported_enters_a_table() -> None:
    Path("chat.jsonl").write_text(lines(chat(success=True)))
    assert main(["import", "chat.jsonl"]) == 0
    (episode,) = list(StoredEpisodes(only_run().trajectories))
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
    assert [e.episode_id for e in list(StoredEpisodes(only_run().trajectories))] == ["t0/s0", "t1/s0", "t2/s0"]


USER = {"role": "user", "content": "Find the bug."}
LS = '{"tool":"bash","cmd":"ls"}'
READ = '{"tool":"bash","cmd":"cat a.txt"}'


def said(talk: Conversation) -> list[str]:
    return [turn.action.raw_text for turn in talk.turns]


def seen(talk: Conversation) -> list[str]:
    return [turn.observation for turn in talk.turns]


def read(record: Any, name: str) -> Conversation:
    assert recognise(record) == name
    return FORMATS[name][1](record)


def block(command: str, call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": {"cmd": command}}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


CLAUDE = {
    "model": "claude-x",
    "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "bash", "description": "sh", "input_schema": {"type": "object", "properties": {"cmd": {}}}}],
    "messages": [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Listing."},
                block("ls", "t1"),
                block("cat a.txt", "t2"),
            ],
        },
        {
            "role": "user",
            "content": [
                result("t1", [{"type": "text", "text": "a.txt"}, {"type": "image", "source": {}}]),
                result("t2", "no such file", is_error=True),
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
    ],
    "score": "1",
}


def test_claudes_blocks_are_words_calls_thoughts_and_results() -> None:
    talk = read(CLAUDE, "messages")
    assert said(talk) == [f"Listing.\n{LS}\n{READ}", "Done."]
    assert seen(talk) == ["", "a.txt\n[image]\n\nno such file\n\nGo on."]
    assert (talk.system, talk.goal, talk.outcome) == ("You are an agent.", "Find the bug.", True)
    assert [tool["function"]["name"] for tool in talk.tools] == ["bash"]
    assert [part.is_error for m in talk.messages if m.role == "tool" for part in m.parts] == [False, True]  # type: ignore[union-attr]
    assert talk.turns[0].said.thought == "hm" and "hm" not in said(talk)[0]


def line(uuid: str, parent: str | None, kind: str, content: Any, reply: str | None = None, **more: Any) -> Any:
    message = {"role": kind, "content": content} | ({"id": reply, "model": "claude-x"} if reply else {})
    message |= {"usage": {"input_tokens": 5, "output_tokens": 2}} if reply else {}
    return {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "type": kind, "message": message, **more}


CLAUDE_CODE = [
    {"type": "summary", "summary": "A title", "leafUuid": "z"},
    {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
    line("m", None, "user", "Caveat: ...", isMeta=True),
    line("a", "m", "user", "Find the bug."),
    line("side", None, "user", "Look around.", isSidechain=True),
    line("b", "a", "assistant", [{"type": "thinking", "thinking": "hm", "signature": "s"}], "r1"),
    line("c", "b", "assistant", [block("ls", "t1")], "r1"),
    line("d", "c", "user", [result("t1", "a.txt")]),
    line("e", "c", "assistant", [block("cat a.txt", "t2")], "r1"),
    line("f", "e", "user", [result("t2", "x = 1")]),
    line("side2", "side", "assistant", [{"type": "text", "text": "Nothing."}], "r2", isSidechain=True),
    line("lost", "f", "assistant", [{"type": "text", "text": "A rewound answer."}], "r3"),
    {"uuid": "g", "parentUuid": None, "logicalParentUuid": "d", "sessionId": "s", "type": "system"},
    {"uuid": "q", "parentUuid": "g", "sessionId": "s", "type": "attachment", "attachment": {"type": "todo_reminder"}},
    {"uuid": "r", "parentUuid": "q", "sessionId": "s", "type": "attachment"}
    | {"attachment": {"type": "queued_command", "prompt": "Quick."}},
    line("h", "r", "user", "And the second?"),
    line("i", "h", "assistant", [{"type": "text", "text": "None."}], "r4"),
    line("j", "i", "assistant", "Overloaded", isApiErrorMessage=True),
]


def test_a_session_of_claude_code_is_its_last_branch_and_its_sub_agents_are_apart(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(lines(*CLAUDE_CODE))
    (main, agent) = [read(record, "claude-code") for _, record in read_source(str(tmp_path / "s.jsonl"))]
    assert said(main) == [f"{LS}\n{READ}", "None."] and seen(main) == [
        "",
        "a.txt\n\nx = 1\n\nQuick.\n\nAnd the second?",
    ]
    assert (main.goal, main.model, main.tokens.llm_in) == ("Find the bug.", "claude-x", 10)
    assert main.turns[0].said.thought == "hm"
    assert (agent.goal, said(agent)) == ("Look around.", ["Nothing."])


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def spoken(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


CALL = {"type": "function_call", "name": "bash", "arguments": '{"cmd": "ls"}', "call_id": "c1"}
ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "xyz"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Listing."}]},
    CALL,
    {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
    {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}},
]
ITEM_STEPS = [
    'Listing.\n{"tool":"bash","cmd":"ls"}\n{"tool":"apply_patch","arguments":"*** Begin"}',
    '{"tool":"local_shell","command":["ls"]}',
]


def codex_events() -> list[Any]:
    return [
        codex("session_meta", id="x", base_instructions={"text": "You are Codex."}),
        codex("response_item", **spoken("developer", "Permissions.")),
        codex("response_item", **spoken("user", "<environment_context>")),
        codex("turn_context", model="gpt-x"),
        codex("response_item", **spoken("user", "Find the bug.")),
        codex("event_msg", type="user_message", message="Find the bug."),
        codex("event_msg", type="token_count", info={"total_token_usage": {"input_tokens": 9, "output_tokens": 3}}),
        *(codex("response_item", **item) for item in ITEMS),
        codex("response_item", type="ghost_snapshot", ghost_commit={}),
        codex("compacted", message="So far: listed."),
    ]


def test_a_session_of_codex_is_its_items_and_the_goal_is_what_the_user_typed(tmp_path: Path) -> None:
    events = codex_events()
    (tmp_path / "rollout-1.jsonl").write_text(lines(*events))
    ((place, record),) = read_source(str(tmp_path / "rollout-1.jsonl"))
    talk = read(record, "codex")
    assert place.endswith("rollout-1.jsonl:1") and said(talk) == ITEM_STEPS and seen(talk) == ["", "a.txt\n\nok"]
    assert (talk.goal, talk.model, talk.tokens.llm_out) == ("Find the bug.", "gpt-x", 3)
    assert talk.system == "You are Codex.\n\nPermissions.\n\n<environment_context>"
    events.append(codex("response_item", type="web_search_call", action={"query": "x"}))
    (tmp_path / "rollout-1.jsonl").write_text(lines(*events))
    with pytest.raises(BadRecord, match="line 17: unknown part 'web_search_call'"):
        read(next(read_source(str(tmp_path / "rollout-1.jsonl")))[1], "codex")


def test_responses_are_items_alone_or_input_and_output() -> None:
    whole = {"model": "gpt-x", "instructions": "Be brief.", "input": "Find the bug.", "output": ITEMS}
    whole["tools"] = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "bash"}]}]
    talk, alone = read(whole, "responses"), read([USER, *ITEMS], "responses")
    assert said(talk) == said(alone) == ITEM_STEPS and talk.system == "Be brief."
    assert [tool["function"]["name"] for tool in talk.tools] == ["bash"]
    assert list(rows_of([USER, *ITEMS])) == [[USER, *ITEMS]]


def test_sharegpt_has_calls_as_turns_or_in_the_text() -> None:
    turns = [("human", "Find the bug."), ("function_call", '{"name": "bash", "arguments": {"cmd": "ls"}}')]
    turns += [("observation", "a.txt"), ("gpt", "<tool_call>{}</tool_call>")]
    record = {"conversations": [{"from": role, "value": text} for role, text in turns], "system": "You help."}
    talk = read(record | {"tools": '[{"name": "bash", "parameters": {}}]'}, "sharegpt")
    assert said(talk) == [LS, "<tool_call>{}</tool_call>"] and seen(talk) == ["", "a.txt"]
    assert talk.system == "You help." and talk.tools[0]["type"] == "function"
    record["conversations"][0]["from"] = "narrator"  # type: ignore[index]
    with pytest.raises(BadRecord, match="message 0: from 'narrator'"):
        read(record, "sharegpt")


CALLED = {"role": "assistant", "content": "", "tool_calls": [called("bash", '{"cmd": "ls"}', "c1")]}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}


def test_a_prompt_and_its_completion_are_text_or_messages() -> None:
    assert said(read({"prompt": "Find the bug.", "completion": "Done."}, "completion")) == ["Done."]
    packed = CALLED | {"tool_calls": [json.dumps(CALLED["tool_calls"][0])]}  # type: ignore[index]
    record = {"prompt": [USER], "completion": [packed, ANSWERED], "reward": 0.5, "example_id": 7}
    talk = read(record | {"info": {"oai_tools": json.dumps([{"name": "bash"}])}}, "completion")
    assert (said(talk), talk.outcome, talk.task_id, len(talk.tools)) == ([LS], False, "7", 1)


def test_a_result_of_tau_bench_is_its_trajectory() -> None:
    (record,) = rows_of([{"task_id": 3, "reward": 1.0, "info": {}, "traj": [USER, CALLED, ANSWERED], "trial": 0}])
    talk = read(record, "tau-bench")
    assert (said(talk), talk.outcome, talk.task_id) == ([LS], True, "3")


def inspect_log() -> dict[str, Any]:
    reasoning = {"type": "reasoning", "reasoning": "hm", "signature": "s"}
    call = {"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"}
    messages = [
        {"role": "user", "content": "attachment://1", "source": "input"},
        {"role": "assistant", "content": [reasoning, {"type": "text", "text": ""}], "tool_calls": [call]},
        {"role": "tool", "content": "no", "tool_call_id": "c1", "function": "bash", "error": {"type": "timeout"}},
    ]
    sample = {"id": "t", "epoch": 1, "target": "x", "messages": messages}
    sample["attachments"] = {"1": "Find the bug.", "2": "Run a command."}
    sample["scores"] = {"match": {"value": "C"}, "model": {"value": 1.0}}
    sample["events"] = [{"event": "model", "tools": [{"name": "bash", "description": "attachment://2"}]}]
    sample["model_usage"] = {"m": {"input_tokens": 4, "output_tokens": 2}}
    return {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}, "samples": [sample, sample]}


def test_a_log_of_inspect_is_its_samples_in_either_form(tmp_path: Path) -> None:
    log = inspect_log()
    (tmp_path / "log.json").write_text(json.dumps(log))
    with ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({key: log[key] for key in ("version", "eval")}))
        archive.writestr("samples/t_epoch_1.json", json.dumps(log["samples"][0]))
    talks = [read(record, "inspect") for _, record in read_source(str(tmp_path))]
    assert len(talks) == 3 and talks[0] == talks[1] == talks[2]
    talk = talks[0]
    assert (talk.goal, talk.model, talk.outcome, talk.task_id) == ("Find the bug.", "m", True, "t")
    assert said(talk) == [LS] and talk.turns[0].said.thought == "hm"
    assert talk.tools[0]["function"] == {"name": "bash", "description": "Run a command."}
    assert talk.messages[-1].parts[0].is_error and talk.tokens.llm_out == 2  # type: ignore[union-attr]
    log["samples"][0]["scores"]["model"]["value"] = 0
    log["samples"][0]["messages"][1]["content"] = [{"type": "tool_use", "tool_type": "web_search", "name": "x"}]
    with pytest.raises(BadRecord, match="message 1: a tool that the provider ran"):
        read(next(rows_of(log)), "inspect")


def test_a_logged_request_teaches_its_response_alone() -> None:
    chat = {"choices": [{"message": CALLED}], "usage": {"prompt_tokens": 8, "completion_tokens": 2}}
    before = [USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "Any."}]
    spend = {"request_id": "r", "model": "m", "messages": json.dumps(before), "response": json.dumps(chat)}
    spend |= {"spend": 0.5, "proxy_server_request": json.dumps({"tools": [{"name": "bash"}]})}
    talk = read(spend, "litellm")
    assert said(talk) == ["Which?", LS] and [turn.copied for turn in talk.turns] == [True, False]
    assert (talk.cost, talk.usd, talk.tokens.llm_in, len(talk.tools)) == (0.5, (None, 0.5), 8, 1)
    claude = {"request": {k: v for k, v in CLAUDE.items() if k != "score"}, "response": CLAUDE["messages"][1]}  # type: ignore[index]
    assert said(read(claude, "litellm"))[-1] == f"Listing.\n{LS}\n{READ}"
    assert said(read({"request": {"input": [USER]}, "response": {"output": ITEMS[:3]}}, "litellm")) == [
        f"Listing.\n{LS}"
    ]
    for record, words in (
        (spend | {"messages": "{}"}, "store_prompts_in_spend_logs"),
        (spend | {"response": {"error": {"message": "no money"}, "choices": []}}, "the request failed .no money"),
        (spend | {"response": {}}, "it has nothing"),
    ):
        with pytest.raises(BadRecord, match=words):
            read(record, "litellm")


def test_logged_requests_of_one_conversation_are_one_session() -> None:
    """Two agents play the same task by turns; a title is asked for in between."""
    steps: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}

    def asked(agent: str, answer: str, spend: float | None) -> dict[str, Any]:
        messages = [USER, *steps[agent]]
        steps[agent] += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        response = {"choices": [{"message": {"role": "assistant", "content": answer, "reasoning_content": "hm"}}]}
        return {"messages": messages, "response": response} | ({} if spend is None else {"spend": spend})

    title = {"messages": [{"role": "user", "content": "A title."}], "response": {"choices": [{"message": CALLED}]}}
    records = [asked("a", "one", 0.5), asked("b", "other", None), title, asked("a", "two", 0.25), asked("b", "end", 1)]
    Path("log.jsonl").write_text(lines(*reversed(records)))
    assert main(["import", "log.jsonl"]) == 0
    episodes = list(StoredEpisodes(only_run().trajectories))
    played = {tuple(step.action.raw_text for step in one.steps): one for one in episodes}
    assert len(episodes) == len(played) == 3
    first, second = played["one", "two"], played["other", "end"]
    assert (first.extra["imported"]["usd"], first.total_cost) == ([0.5, 0.25], 0.75)
    assert (second.extra["imported"]["usd"], second.metadata.seed != first.metadata.seed) == ([None, 1.0], True)
    assert not any(step.label for step in first.steps), "no turn is copied from elsewhere"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "server_tool_use", "name": "web_search"}, "message 1: unknown part 'server_tool_use'"),
        ({"type": "hologram"}, "message 1: unknown part 'hologram'"),
        ({"nothing": 1}, "message 1: unknown part None"),
        (result("t1", [{"type": "search_result"}]), "message 1: unknown part 'search_result'"),
        (result("t1", "x"), "a tool result in a message of role assistant"),
    ],
)
def test_a_part_of_an_unknown_kind_is_refused_by_name(part: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        read({"messages": [USER, {"role": "assistant", "content": [part]}]}, "messages")


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((True, 1, 1.0, 0.9999999, "true", "1", "C", 3), True),
        ((False, 0, 0.5, -1, "False", "0.0", "I", "P"), False),
        ((None, {"a": 1}, []), None),
    ],
)
def test_an_outcome_is_read_as_logs_write_it(values: tuple[Any, ...], outcome: bool | None) -> None:
    assert [outcome_of(value, "reward") for value in values] == [outcome] * len(values)


def test_an_outcome_in_another_word_is_refused() -> None:
    with pytest.raises(BadRecord, match="success 'maybe': no outcome"):
        read({"messages": [USER, CALLED], "success": "maybe"}, "messages")


def test_the_command_offers_the_formats_that_are_read() -> None:
    assert sorted(IMPORT_FORMATS) == sorted(FORMATS)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every field and item of a value: its container, and its name or index there."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from places(value[name])


def outcomes(value: Any) -> Iterator[Conversation | BadRecord]:
    """Yield the result of each record of a file's value; of a list under `lines`, of the lines of a file."""
    lined = value.get("lines") if isinstance(value, dict) else None
    places_and_records = grouped((f"f:{n}", line) for n, line in enumerate(lined)) if isinstance(lined, list) else ()
    for record in [record for _, record in places_and_records] or rows_of(value):
        try:
            yield record if isinstance(record, BadRecord) else FORMATS[recognise(record)][1](record)
        except BadRecord as error:
            yield error


WHOLE = (
    *(CLAUDE, {"input": "Find the bug.", "output": ITEMS}, chat(success=True), atif(), trajectory(calls=True)),
    {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}], "tools": "[]"},
    {"prompt": [USER], "completion": [CALLED, ANSWERED], "info": {"oai_tools": "[]"}},
    {"messages": [USER], "response": {"choices": [{"message": CALLED}], "usage": {}}, "model_parameters": {}},
    *({"traj": [USER, CALLED, ANSWERED]}, inspect_log(), {"lines": CLAUDE_CODE}, {"lines": codex_events()}),
)


@pytest.mark.parametrize("wrong", [3, [["x"]], {"type": "x"}], ids=["number", "list", "object"])
def test_a_field_of_another_type_is_refused_or_ignored_wherever_it_stands(wrong: Any) -> None:
    for value in map(copy.deepcopy, WHOLE):
        assert all(isinstance(talk, Conversation) for talk in outcomes(value))
        for holder, name in list(places(value)):
            held, holder[name] = holder[name], wrong
            assert all("\n" not in str(talk) for talk in outcomes(value) if isinstance(talk, BadRecord))
            holder[name] = held

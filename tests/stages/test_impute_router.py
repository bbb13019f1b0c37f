"""A router from logs without an environment: its labels are imputed, marked so, and in no table."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from r2v.cli.main import build_parser, main
from r2v.config import load
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.errors import InputError
from r2v.evaluation.acting.methods import _routers
from r2v.evaluation.audit.check_setup import require_executed
from r2v.evaluation.audit.verify import verify_results
from r2v.pipeline.inputs import published
from r2v.router.case_support import CASE_SCORE
from r2v.router.labels import read_rows
from r2v.router.models import load as load_router
from r2v.serve.bundle.domain import read_domain
from r2v.serve.bundle.manifest import read_bundle
from r2v.serve.server import listening
from r2v.serve.transport.endpoints import PATHS
from r2v.stages.impute_router import _recorded, placed_on_records
from r2v.stages.router_settings import RouterFeaturesSettings
from r2v.storage.artifact import Work, external
from r2v.wire.exchange import WireReply
from r2v.wire.message import ThinkingPart, ToolCall
from r2v.wire.stream_facts import WireName
from tests import warm
from tests.data.interchange.logs import chat, lines
from tests.serve.pairs import PROMPT
from tests.serve.stub import Seen, Served, Step, Stub, in_thread, reply, served, stub
from tests.serve.test_answering import says
from tests.serve.test_forwarding import post
from tests.serve.wires import USD, whole

pytestmark = pytest.mark.numerical

LABEL = ["env.benchmark=logs", "router.label=imputed", "router.held_out_tasks=0.5"]
SMALL = ["training.num_epochs=1", "training.bc.max_examples=8", "inference.max_new_tokens=64", "router.num_tasks=4"]
OVERRIDES = [*LABEL, *SMALL, "router.num_calibration_tasks=2", "router.features=[page,tool,verifier,cases]"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder in which logs of twelve tasks became a policy and an imputed router by `r2v run` alone."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "chat.jsonl").write_text(lines(*(chat(number) for number in range(12))))
    assert warm.run(folder, "import", "chat.jsonl").returncode == 0
    done = warm.run(folder, "run", "--overrides", *overrides(folder))
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    return folder


def overrides(folder: Path) -> list[str]:
    (run,) = DataRegistry(folder / "data").query()
    return [*OVERRIDES, f"data.runs=[{run.run_id}]"]


def router_of(folder: Path) -> Path:
    return (folder / "outputs" / "router" / "logs_noisy").resolve()


def test_logs_alone_become_a_router_that_says_what_it_is(logs: Path) -> None:
    said = (logs / "said.txt").read_text()
    assert "stages_run=5/5" in said and "has no verifier; that group is left out" in said
    assert "an imputed router: it tells where the policy acts otherwise than its teacher was recorded to" in said
    cloned = set(json.loads((logs / "outputs/policy/logs_noisy/bc/tasks.json").read_text()))
    rows = read_rows(logs / "data/router_features/logs_noisy/router_features.jsonl")
    assert len(cloned) == 6 and len({row.task_id for row in rows}) == 6
    assert not cloned & {row.task_id for row in rows}, "a policy agrees more with what it was cloned from"
    index = json.loads((logs / "outputs/case_support/logs_noisy/cases.json").read_text())
    assert set(index["tasks"]) == cloned and all("cases.share" in row.features for row in rows)
    assert {row.actor for row in rows} == {"teacher"}
    model = load_router(router_of(logs) / "r2v.json")
    assert model.label == "imputed" and not [name for name in model.names if name.startswith("verifier")]
    threshold = json.loads((router_of(logs) / "threshold.json").read_text())
    assert "realised" not in threshold and 0 <= threshold["imputed"]["llm_call_rate"] <= threshold["budget"] == 0.2
    manifest = json.loads((router_of(logs) / "artifact.json").read_text())["summary"]
    assert manifest["labels"] == "imputed" and "success" not in manifest and "llm_call_rate" not in manifest
    assert json.loads((router_of(logs) / "router_report.json").read_text())["labels"] == "imputed"
    assert not (router_of(logs) / "disagreement_router.json").exists()


def test_the_same_command_again_does_nothing_and_the_rows_survive_a_new_attempt(logs: Path) -> None:
    rows = (logs / "data/router_features/logs_noisy/router_features.jsonl").read_bytes()
    again = warm.run(logs, "run", "--overrides", *overrides(logs))
    assert again.returncode == 0 and "stages_run=" not in again.stderr
    forced = warm.run(logs, "generate_router_features", "--force", "--overrides", *overrides(logs))
    assert forced.returncode == 0, forced.stderr
    assert (logs / "data/router_features/logs_noisy/router_features.jsonl").read_bytes() == rows


def test_case_support_alone_is_a_router_of_the_records(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the two is made, the agreement at the steps that the other keeps is shown beside it."""
    monkeypatch.chdir(logs)
    assert main(["train_router", "--overrides", *overrides(logs), "router.model=case_support"]) == 0
    assert "; with router.model=boosting " in capsys.readouterr().err
    assert load_router(router_of(logs) / "r2v.json").names == CASE_SCORE
    assert "; with router.model=case_support " in (logs / "said.txt").read_text()
    assert main(["train_router", "--overrides", *overrides(logs)]) == 0


def test_a_bundle_of_it_has_a_card_without_a_table(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(logs)
    assert main(["export", "bundle", "--overrides", *overrides(logs)]) == 0
    assert main(["export", "again", "--overrides", *OVERRIDES]) == 0, "every stage calls the latest run up to date"
    assert main(["export", "other", "--overrides", *OVERRIDES, "router.budget=0.4"]) == 2
    made = read_bundle(logs / "bundle").manifest
    assert (made.labels, made.results_sha256, made.benchmark) == ("imputed", None, "logs")
    assert not (logs / "bundle" / "verifier").exists() and (logs / "bundle" / "policy").is_dir()
    index = logs / "outputs" / "case_support" / "logs_noisy"
    for name in ("cases.npz", "cases.json"):
        assert (read_bundle(logs / "bundle").cases / name).read_bytes() == (index / name).read_bytes()
    card = (logs / "bundle" / "README.md").read_text()
    assert "## Nothing was executed" in card and "Imputed figures" in card and "Executed results" not in card
    (line,) = re.findall(r"^r2v (.*)$", card, re.M)
    build_parser().parse_args(line.replace("PROVIDER:MODEL", "openai:gpt-5.2").split())
    with pytest.raises(InputError, match="cannot tell whether the policy succeeds"):
        verify_results(logs / "bundle")


def test_no_evaluation_plays_it_and_no_table_may_hold_it(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(logs)
    for command in (["evaluate"], ["ablations"], ["train_verifier"], ["train_policy", "--stage", "preference"]):
        assert main([*command, "--overrides", *OVERRIDES]) == 2
        assert "router.label=imputed is for records of which nothing is executed" in capsys.readouterr().err
    assert main(["run", "--from", "evaluate", "--overrides", *OVERRIDES]) == 2
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    api = ["policy.provider=openai", "policy.model_name=gpt-6-luna", "teacher.max_usd=1"]
    assert main(["run", "--overrides", "env.benchmark=logs", *api]) == 2
    assert "router.label=imputed makes a router" in capsys.readouterr().err
    with pytest.raises(InputError, match="no evaluation plays it"):
        _routers(router_of(logs), None)
    with pytest.raises(InputError, match="there is nothing to replay"):
        verify_results(router_of(logs))
    require_executed(published(load(None, overrides(logs)), "bc", logs).folder)


def test_its_features_need_tasks_that_were_not_cloned(logs: Path, tmp_path: Path) -> None:
    config = load(None, overrides(logs))
    inputs = {name: published(config, name, logs) for name in ("bc", "perturb")}
    settings = RouterFeaturesSettings.of(config)
    work = Work(folder=tmp_path, fingerprint="", inputs=inputs, root=logs)
    episodes, splits = _recorded(settings, work)
    assert len(splits) == 6 and {episode.metadata.task_id for episode in episodes.values()} == splits.keys()
    cloned = sorted(
        {episode.metadata.task_id for episode in list(StoredEpisodes(inputs["perturb"].file("trajectories.jsonl")))}
    )
    shutil.copytree(inputs["bc"].folder, tmp_path / "bc")
    (tmp_path / "bc" / "tasks.json").write_text(json.dumps(cloned))
    everything = external(tmp_path / "bc" / "tasks.json")
    with pytest.raises(InputError, match="the policy was cloned from all 12 recorded tasks"):
        _recorded(settings, replace(work, inputs={**inputs, "bc": everything}))


def test_the_share_that_is_left_out_belongs_to_the_label(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--overrides", "router.held_out_tasks=0.5"]) == 2
    assert "router.held_out_tasks belongs to router.label=imputed" in capsys.readouterr().err


def test_a_threshold_leaves_at_most_the_budgets_share_of_recorded_steps_to_the_llm() -> None:
    steps = [(0.1, True), (0.2, True), (0.4, False), (0.4, True), (0.9, False)]
    placed = placed_on_records(steps, 0.2)
    assert placed == {"tau": 0.9, "llm_call_rate": 0.2, "agreement": 0.6, "agreement_of_kept_steps": 0.75}
    assert placed_on_records(steps, 0.59)["tau"] == 0.9 and placed_on_records(steps, 0.6)["tau"] == 0.4
    assert placed_on_records(steps, 0.0)["tau"] == 1.0
    everything = placed_on_records(steps, 1.0)
    assert everything["tau"] == 0.1 and everything["agreement_of_kept_steps"] is None
    assert placed_on_records([(0.7, False)] * 3, 0.5)["llm_call_rate"] == 0.0, "equal scores go together"


# Two models behind APIs, from recorded sessions to a served pair ------------------------------------------------------
# The LLM opens a file that the page names and lists a folder otherwise; the small model always lists. So it agrees with
# the LLM on half of the pages, and only the page shows on which.

STEPS = 4
NAMES = ("ls", "open")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FOLDER, FILE = "the folder {} holds more folders: look further down", "found the file {} here: notes, text, readable"


def tools(wire: WireName) -> list[dict[str, Any]]:
    if wire == "messages":
        return [{"name": name, "description": name, "input_schema": SCHEMA} for name in NAMES]
    plain = [{"name": name, "description": name, "parameters": SCHEMA} for name in NAMES]
    if wire == "responses":
        return [{"type": "function", **one} for one in plain]
    return [{"type": "function", "function": one} for one in plain]


def wire_of(seen: Seen) -> WireName:
    return next(name for name, path in PATHS.items() if seen.target.startswith(path))


def right(page: str) -> WireReply:
    """Return the LLM's reply; `page` is its whole input."""
    newest = max(page.rfind("holds more folders"), page.rfind("found the file"))
    name = "open" if newest >= 0 and page[newest:].startswith("found") else "ls"
    return says(ThinkingPart(text="I look."), ToolCall(name=name, arguments='{"at": "."}', id="call_x"))


def llm(seen: Seen) -> Sequence[Step]:
    return reply(whole(wire_of(seen), right(seen.body.decode())))


def small(seen: Seen) -> Sequence[Step]:
    return reply(whole(wire_of(seen), says(ToolCall(name="ls", arguments='{"at": "."}', id="call_y"))))


def play(server: Served, wire: WireName, task: int) -> None:
    """Play one session of an agent: pages of both kinds in turn, by the number of the task."""
    items: list[dict[str, Any]] = [{"role": "user", "content": f"Find report {task} in the archive of the office."}]
    for step in range(STEPS):
        body: dict[str, Any] = {"model": "llm", "tools": tools(wire)}
        if wire == "responses":
            body |= {"input": items, "instructions": PROMPT}
        elif wire == "messages":
            body |= {"messages": items, "system": PROMPT, "max_tokens": 100}
        else:
            body |= {"messages": [{"role": "system", "content": PROMPT}, *items], "max_tokens": 100}
        made = post(server.url, PATHS[wire], body, server.auth | {"x-r2v-session": f"{wire}-{task}"})
        assert made.status_code == 200, made.text
        page = (FILE if (task >> step) % 2 else FOLDER).format(f"r{task}")
        items += _answered(wire, made.json(), page, f"c{task}-{step}")


def _answered(wire: WireName, said: dict[str, Any], page: str, name: str) -> list[dict[str, Any]]:
    if wire == "chat":
        call = {**said["choices"][0]["message"]["tool_calls"][0], "id": name}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": page},
        ]
    if wire == "messages":
        blocks = [{**block, "id": name} if block["type"] == "tool_use" else block for block in said["content"]]
        result = {"type": "tool_result", "tool_use_id": name, "content": page}
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    call = next(item for item in said["output"] if item["type"] == "function_call")
    return [
        {"type": "function_call", "call_id": name, "name": call["name"], "arguments": call["arguments"]},
        {"type": "function_call_output", "call_id": name, "output": page},
    ]


def of_pair(run: str, little: Stub) -> list[str]:
    about = ["provider=openai", "model_name=little-1"]
    api = [f"base_url={little.url}/v1", "api_key_env=STUB_API_KEY", "usd_in=0.1", "usd_out=0.4"]
    return [
        "env.benchmark=logs",
        "router.label=imputed",
        "router.model=case_support",
        "router.budget=0.5",
        f"data.runs=[{run}]",
        "teacher.max_usd=1",
        "teacher.mode=concurrent",
        *(f"policy.{one}" for one in about),
        *(f"policy.api.{one}" for one in api),
    ]


@pytest.mark.parametrize("wire", PATHS)
def test_recorded_sessions_become_a_served_router(
    wire: WireName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUB_API_KEY", "sk-any")
    with stub(llm) as large, served(tmp_path, large.url) as server:
        for task in range(24):
            play(server, wire, task)
    assert main(["import", "data/served/default"]) == 0
    (run,) = DataRegistry(tmp_path / "data").query()
    with stub(small) as little:
        words = of_pair(run.run_id, little)
        assert main(["run", "--overrides", *words]) == 0
        said = capsys.readouterr()
        assert main(["run", "--overrides", *words]) == 0
        questions = [asked for seen in little.seen if PROMPT in str(asked := json.loads(seen.body))]
        assert len(questions) == 24 * STEPS, "nothing is asked twice"
        asked = questions[0]
        assert asked["messages"][0] == {"role": "system", "content": PROMPT} and "I look" not in str(asked)
        assert [tool["function"]["name"] for tool in asked["tools"]] == list(NAMES) and "tool_choice" not in asked
        rows = read_rows(tmp_path / "data/router_features/logs_noisy/router_features.jsonl")
        assert {round(row.cost_llm, 8) for row in rows} == {round(USD, 8)}
        assert {round(row.cost_slm, 8) for row in rows} == {round(USD / 10, 8)}
        half = sum(bool(row.disagrees) for row in rows) / len(rows)
        assert 0.3 < half < 0.6
        router = router_of(tmp_path)
        told = json.loads((router / "router_report.json").read_text())
        figures = {one["budget"]: one for one in told["records"]}
        own = figures[0.5]
        assert own["saved"] == pytest.approx(1 - own["llm_call_rate"] - 0.1) and own["agreement"] > 0.95
        assert own["lead_interval"][0] > 0 and own["unchanged"] <= own["sessions"]
        verdict = next(line for line in said.err.splitlines() if "on your sessions: " in line)
        assert "dollars" in verdict and verdict.partition("verdict=")[2] in (router / "records.html").read_text()
        assert main(["export", "bundle", "--overrides", *words]) == 0
        bundle = tmp_path / "bundle"
        assert read_bundle(bundle).manifest.labels == "imputed" and len(read_domain(bundle).tools) == 2
        with stub(llm) as large:
            teacher = {"provider": "openai", "model_name": "big-1", "base_url": f"{large.url}/v1"}
            config = load(
                {
                    "teacher": teacher | {"usd_in": 1.0, "usd_out": 4.0, "api_key_env": "STUB_API_KEY"},
                    "serve": {"port": 0, "name": "pair"},
                },
                [one for one in words if one.startswith("policy.")],
            )

            async def pair(ready: Any, stop: Any) -> None:
                async with listening(config, tmp_path, record=True, bundle=bundle) as place:
                    ready(place)
                    await stop.wait()

            offered = [f"r2v:budget={one['budget']:g}" for one in told["records"]]
            with in_thread(pair) as place:
                server = Served(url=place.url, key=place.keys_file.read_text().split()[1], folder=place.folder)
                listed = httpx2.get(f"{server.url}/v1/models", headers=server.auth).json()["data"]
                assert [model["id"] for model in listed][2:-2] == offered, "the budgets of the page"
                sources = [routed(server, wire, page) for page in (FOLDER, FILE)]
    assert sources == [("small", "score"), ("llm", "score")]


def routed(server: Served, wire: WireName, page: str) -> tuple[str, str]:
    """Return the model that answers behind a page of this kind, and the reason."""
    first = right("")
    call = {"chat": whole("chat", first), "messages": whole("messages", first), "responses": whole("responses", first)}
    items: list[dict[str, Any]] = [{"role": "user", "content": "Find report 77 in the archive of the office."}]
    items += _answered(wire, json.loads(call[wire]), page.format("r77"), "c77")
    body: dict[str, Any] = {"model": "r2v", "tools": tools(wire)}
    if wire == "responses":
        body |= {"input": items, "instructions": PROMPT}
    elif wire == "messages":
        body |= {"messages": items, "system": PROMPT, "max_tokens": 100}
    else:
        body |= {"messages": [{"role": "system", "content": PROMPT}, *items], "max_tokens": 100}
    made = post(server.url, PATHS[wire], body, server.auth)
    return made.headers["x-r2v-source"], made.headers["x-r2v-reason"]

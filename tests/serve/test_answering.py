"""Answering by a pair: the model of each answer, its format, and the failure of a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from r2v.cli.main import main
from r2v.data.tools import RecordedTool
from r2v.emulator import Emulator
from r2v.llm.providers.bodies import CALL_FORMAT
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.bundle.domain import Domain
from r2v.serve.transport.endpoints import PATHS
from r2v.wire.exchange import WireReply
from r2v.wire.message import Message, Part, TextPart, ThinkingPart, ToolCall
from r2v.wire.stream_facts import WireName
from tests.serve.accounts.test_books import booked
from tests.serve.pairs import LS, asks, conversation, make_bundle, pair_served
from tests.serve.stub import RESET, Seen, Served, Step, reply, stream
from tests.serve.test_forwarding import post
from tests.serve.wires import USAGE, USD, WIRES, events, whole

PAGE, ERROR = "a.txt b.txt", "error: no such folder"


def says(*parts: Part) -> WireReply:
    return WireReply(message=Message(role="assistant", content=parts), usage=USAGE, id="r", model="m")


CALL = says(ThinkingPart(text="hm"), ToolCall(name="ls", arguments='{"at": "."}', id="x1"))


def llm(seen: Seen) -> list[Step]:
    wire: WireName = next(name for name, path in PATHS.items() if seen.target.startswith(path))
    answer = says(TextPart(text="From the LLM."))
    return stream(events(wire, answer)) if seen.json.get("stream") else reply(whole(wire, answer))


def small(seen: Seen) -> list[Step]:
    return reply(whole("chat", CALL))


def turns(server: Served) -> list[dict[str, Any]]:
    return [row for row in read_traffic(server.folder) if row["kind"] == "turn"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("wire", WIRES)
def test_the_router_decides_and_the_small_model_s_turn_is_rendered(
    wire: WireName, streams: bool, tmp_path: Path
) -> None:
    with pair_served(tmp_path, llm, small) as (server, large, little):
        more = {"stream": True} if streams else {}
        easy = post(server.url, PATHS[wire], asks(wire, conversation(wire, PAGE), **more), server.auth)
        hard = post(server.url, PATHS[wire], asks(wire, conversation(wire, ERROR), **more), server.auth)
    assert easy.headers["x-r2v-source"] == "small" and hard.headers["x-r2v-source"] == "llm"
    assert float(easy.headers["x-r2v-score"]) < 0.5 <= float(hard.headers["x-r2v-score"])
    assert float(easy.headers["x-r2v-saved-usd"]) == pytest.approx(USD * 0.9)
    assert "From the LLM." in hard.text and "hm" not in easy.text and '"r2v_' in easy.text and "ls" in easy.text
    assert len(large.seen) == 1 and large.seen[0].json["model"] == "big-1"
    asked = little.seen[0].json
    assert asked["model"] == "little-1" and not asked.get("stream") and asked["tools"][0]["function"]["name"] == "ls"
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "tool"]
    first, second = turns(server)
    assert (first["source"], second["source"]) == ("small", "llm")
    assert first["usd"] == pytest.approx(USD / 10) and second["usd"] == pytest.approx(USD)
    assert booked(server)[0] == pytest.approx(USD + 2 * USD / 10), "the proposal that was thrown away is paid too"
    assert first["decision"]["features"]["page.obs_is_error"] == 0.0 and first["decision"]["probability"] == 1.0


def test_a_session_is_explained_turn_by_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = []
    with pair_served(tmp_path, llm, small) as (server, _, _):
        for page in (PAGE, ERROR):
            headers = server.auth | {"x-r2v-session": "mine"}
            answer = post(server.url, PATHS["chat"], asks("chat", conversation("chat", page)), headers)
            saved.append(answer.headers.get("x-r2v-saved-usd"))
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "mine"]) == 0
    head, names, first, second = capsys.readouterr().out.splitlines()
    assert "session mine, 2 turns, $0.0002" in head and "paid, $0.0001" in head and "score" in names
    assert first.split()[:5] == ["1", "small", "score", "0.119", "0.500"] and first.split()[-1] == saved[0]
    assert second.split()[:3] == ["2", "llm", "score"] and second.split()[-1] == f"{-USD / 10:.6f}"
    assert float(second.split()[-2]) == pytest.approx(USD * 1.1, abs=1e-6), "and the proposal"
    assert main(["explain", "--sessions"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["mine", "data/served/default"]
    assert main(["explain", "another"]) == 2
    assert "another: no chain of jobs, session or episode" in (told := capsys.readouterr().err)
    assert "the newest of 1 sessions: mine; r2v explain --sessions" in told


def test_clients_of_both_makers_read_the_small_model_s_turn(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, _, _):
        ours = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
        theirs = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)
        made: Any = ours.chat.completions.create(**asks("chat", conversation("chat", PAGE)))
        call = made.choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"at": "."} and made.choices[0].finish_reason == "tool_calls"
        with ours.chat.completions.stream(**asks("chat", conversation("chat", PAGE))) as chunks:
            assert chunks.get_final_completion().choices[0].message.tool_calls[0].function.name == "ls"
        response: Any = ours.responses.create(**asks("responses", conversation("responses", PAGE)))
        assert [item.type for item in response.output] == ["function_call"]
        with ours.responses.stream(**asks("responses", conversation("responses", PAGE))) as happened:
            assert happened.get_final_response().output[0].name == "ls"
        message: Any = theirs.messages.create(**asks("messages", conversation("messages", PAGE)))
        assert message.content[0].input == {"at": "."} and message.stop_reason == "tool_use"
        with theirs.messages.stream(**asks("messages", conversation("messages", PAGE))) as pieces:
            assert pieces.get_final_message().content[0].name == "ls"


OUTSIDE: dict[str, dict[str, Any]] = {
    "another system prompt": {
        "messages": [{"role": "system", "content": "Be a pirate."}, {"role": "user", "content": "x"}]
    },
    "unknown tool rm": {"tools": [{"type": "function", "function": {"name": "rm", "parameters": {}}}]},
    "tool ls has other parameters": {
        "tools": [
            {"type": "function", "function": {"name": "ls", "parameters": {"properties": {"to": {"type": "string"}}}}}
        ]
    },
    "unknown kind of tool custom": {"tools": [{"type": "custom", "custom": {"name": "ls"}}]},
    "several samples are asked for": {"n": 2},
    "a structured reply is asked for": {"response_format": {"type": "json_schema", "json_schema": {}}},
    "unreadable part image_url": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    },
    "no tools": {"tools": []},
    "previous_response_id: the provider holds a part of it": {"previous_response_id": "resp_1"},
}


@pytest.mark.parametrize("reason", OUTSIDE)
def test_outside_its_domain_the_small_model_is_not_even_asked(reason: str, tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, large, little):
        body = asks("chat", conversation("chat", PAGE)) | OUTSIDE[reason]
        made = post(server.url, PATHS["chat"], body, server.auth)
        assert made.headers["x-r2v-source"] == "llm" and made.headers["x-r2v-reason"] == reason
        ready = httpx2.get(server.url + "/readyz", headers=server.auth).json()
        refused = post(server.url, PATHS["chat"], body | {"model": "small"}, server.auth)
    assert not little.seen and len(large.seen) == 1 and ready["small"]["outside"] == {reason: 1}
    assert refused.status_code == 400 and reason in refused.json()["error"]["message"]


def test_a_benchmark_s_bundle_names_the_prompt_that_it_expects(tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundle", domain=Domain(tools=(RecordedTool(name="ls", parameters=LS),)))
    with pair_served(tmp_path, llm, small) as (server, _, _):
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE)), server.auth)
    assert made.headers["x-r2v-reason"] == (f"another system prompt; expected is one that ends in: {CALL_FORMAT}")


ASKED_TOOLS: dict[str, tuple[dict[str, Any], WireReply, str]] = {
    "of another name": ({}, says(ToolCall(name="rm")), "a call of rm, which is not offered"),
    "none where one is demanded": (
        {"tool_choice": "required"},
        says(TextPart(text="Done.")),
        "no call of a tool, which tool_choice demands",
    ),
    "one where none is wanted": ({"tool_choice": "none"}, CALL, "a call of a tool, which tool_choice excludes"),
    "another than the named one": (
        {"tool_choice": {"type": "function", "function": {"name": "cat"}}},
        CALL,
        "a call of ls, which is not offered",
    ),
}


@pytest.mark.parametrize("case", ASKED_TOOLS)
def test_a_turn_that_the_client_cannot_take_counts_as_a_failure(case: str, tmp_path: Path) -> None:
    more, said, reason = ASKED_TOOLS[case]
    with pair_served(tmp_path, llm, lambda _: reply(whole("chat", said))) as (server, large, little):
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE), **more), server.auth)
    assert made.headers["x-r2v-source"] == "llm"
    assert made.headers["x-r2v-reason"] == f"small model failed: {reason}"
    assert len(large.seen) == len(little.seen) == 1 and booked(server)[0] == pytest.approx(USD + USD / 10)


def test_a_tool_s_name_adds_no_header(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, _, _):
        tool = {"type": "function", "function": {"name": "rm\r\nx-evil: 1", "parameters": {}}}
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE), tools=[tool]), server.auth)
        bare = httpx2.get(server.url + "/readyz")
    assert "x-evil" not in made.headers and made.headers["x-r2v-reason"] == "unknown tool rm??x-evil: 1"
    assert bare.json() == {"status": "ok"}, "what an agent offers is told to nobody without a key"


def test_names_say_who_answers(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, large, _):
        names = [model["id"] for model in httpx2.get(server.url + "/v1/models", headers=server.auth).json()["data"]]
        assert names == ["llm", "r2v", "r2v:budget=0.3", "r2v:budget=1", "small", "big-1"]
        sources = {
            name: post(
                server.url, PATHS["chat"], asks("chat", conversation("chat", page), model=name), server.auth
            ).headers["x-r2v-source"]
            for name, page in (
                ("llm", PAGE),
                ("small", ERROR),
                ("r2v:budget=0.3", PAGE),
                ("r2v:budget=1", PAGE),
                ("big-1", PAGE),
                ("r2v:budget=0.01", ERROR),
            )
        }
    expected = {
        "llm": "llm",
        "small": "small",
        "r2v:budget=0.3": "small",
        "r2v:budget=1": "llm",
        "big-1": "llm",
        "r2v:budget=0.01": "small",
    }
    assert sources == expected and "decision" not in turns(server)[0]


def test_any_model_is_routed_but_r2v_s_names_keep_their_meaning(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small, "serve.any_model=true") as (server, large, _):
        sources = [
            post(server.url, PATHS["chat"], asks("chat", conversation("chat", page), model=name), server.auth).headers[
                "x-r2v-source"
            ]
            for name, page in (("small", ERROR), ("llm", PAGE), ("gpt-4", PAGE), ("gpt-4", ERROR))
        ]
    assert sources == ["small", "llm", "small", "llm"] and {seen.json["model"] for seen in large.seen} == {"big-1"}


def test_authors_are_known_by_ids_and_by_texts_and_survive_a_restart(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, lambda seen: reply(whole("chat", says(TextPart(text="Done  so far."))))) as (
        server,
        _,
        _,
    ):
        post(
            server.url,
            PATHS["chat"],
            asks("chat", conversation("chat", PAGE, PAGE, ids=["r2v_ab", "call_b"])),
            server.auth,
        )
    assert turns(server)[-1]["decision"]["features"]["page.obs_is_error"] == 0.0
    with pair_served(tmp_path, llm, small) as (server, _, _):
        history = [
            *conversation("chat", PAGE, PAGE, ids=["r2v_ab", "call_b"]),
            {"role": "assistant", "content": "Done so far."},
            {"role": "user", "content": "Go on."},
        ]
        post(server.url, PATHS["chat"], asks("chat", history), server.auth)
    first, second = turns(server)
    assert first["session"] == second["session"] and (first["turn"], second["turn"]) == (1, 2)
    from r2v.config import InferenceConfig
    from r2v.serve.bundle.domain import read_domain
    from r2v.serve.pair.state import served_view
    from r2v.serve.sessions import Sessions

    sessions = Sessions()
    for row in turns(server):
        sessions.restore(row)
    session = sessions.get(first["session"])
    assert session is not None
    view = served_view(asks("chat", history), session, read_domain(tmp_path / "bundle"), InferenceConfig())
    assert view.llm_steps == (1,) and view.step == 3 and view.actions[2] == "Done so far."


def test_a_repeated_request_is_answered_by_the_same_model(tmp_path: Path) -> None:
    """As when a client repeats a request without a stream, or another threshold would now decide otherwise."""
    with pair_served(tmp_path, llm, small) as (server, _, _):
        for name, stream_ in (("r2v", True), ("r2v:budget=1", False)):
            body = asks("chat", conversation("chat", PAGE), model=name, stream=stream_)
            made = post(server.url, PATHS["chat"], body, server.auth | {"x-r2v-session": "s"})
            assert made.headers["x-r2v-source"] == "small"
    assert [row["decision"]["reason"] for row in turns(server)] == ["score", "repeat"]


FAILING: dict[str, Sequence[Step]] = {
    "status 500": reply({"error": {"message": "no"}}, 500),
    "connection cut": [RESET],
    "an error under 200": reply({"error": {"message": "overloaded"}}),
    "a page": reply(b"<html>Bad gateway</html>"),
    "nothing said": reply(whole("chat", says(TextPart(text="")))),
    "cut at its limit": reply(
        json.loads(whole("chat", CALL))
        | {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]}
    ),
}


@pytest.mark.parametrize("how", FAILING)
def test_where_the_small_model_fails_the_llm_answers(how: str, tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, lambda seen: FAILING[how]) as (server, large, little):
        for number in range(5):
            body = asks("messages", conversation("messages", PAGE, text=f"Task {number}."), stream=True)
            made = post(server.url, PATHS["messages"], body, server.auth)
            assert made.status_code == 200 and made.text.count("event: message_start") == 1
    rows = turns(server)
    assert len(large.seen) == 5 and len(little.seen) == 3, "after three failures it is left alone"
    assert (
        rows[0]["decision"]["reason"].startswith("small model failed")
        and rows[4]["decision"]["reason"] == "small model down"
    )


@pytest.mark.parametrize("setting", ["error", "small"])
def test_where_the_llm_is_down_the_configured_one_answers(setting: str, tmp_path: Path) -> None:
    with pair_served(tmp_path, lambda seen: [RESET], small, f"serve.llm_down={setting}") as (server, _, _):
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", ERROR)), server.auth)
    (row,) = turns(server)
    if setting == "small":
        assert made.status_code == 200 and row["source"] == "small" and row["decision"]["reason"] == "LLM down"
    else:
        assert made.status_code == 502 and row["source"] == "llm" and "x-should-retry" not in made.headers


def test_a_shadow_decides_and_the_llm_acts(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small, "serve.shadow=true") as (server, large, _):
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE)), server.auth)
    (row,) = turns(server)
    assert made.headers["x-r2v-source"] == "llm" and row["source"] == "llm" and row["decision"]["source"] == "small"
    with pair_served(tmp_path, llm, small, "serve.shadow=true") as (server, _, _):
        post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE)), server.auth)
    assert turns(server)[-1]["decision"]["reason"] == "score", "the LLM's turn in its place is no decision to repeat"


def test_another_gateway_may_ask_for_the_decision_alone(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, large, _):
        for page, first in ((PAGE, "small"), (ERROR, "llm")):
            body = {"wire": "messages", "request": asks("messages", conversation("messages", page))}
            told = httpx2.post(server.url + "/v1/decide", json=body, headers=server.auth).json()
            assert told["candidates"][0]["source"] == first and 0 <= told["score"] <= 1 and "features" in told
        bad = httpx2.post(server.url + "/v1/decide", json={"wire": "x"}, headers=server.auth)
    assert bad.status_code == 400 and not large.seen


@pytest.mark.parametrize("thinking,source", [("enabled", "llm"), ("adaptive", "small"), ("disabled", "small")])
def test_thinking_within_a_budget_is_not_interrupted(thinking: str, source: str, tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, small) as (server, _, _):
        body = asks("messages", conversation("messages", PAGE), thinking={"type": thinking, "budget_tokens": 1024})
        assert post(server.url, PATHS["messages"], body, server.auth).headers["x-r2v-source"] == source


def test_the_llm_s_thoughts_are_not_shown_to_the_small_model(tmp_path: Path) -> None:
    items = conversation("messages", PAGE)
    items[1]["content"].insert(0, {"type": "thinking", "thinking": "secret plan", "signature": "sig-of-the-llm"})
    with pair_served(tmp_path, llm, small) as (server, _, little):
        post(server.url, PATHS["messages"], asks("messages", items), server.auth)
    assert "secret plan" not in little.seen[0].body.decode() and "sig-of-the-llm" not in little.seen[0].body.decode()


REFUSALS: dict[WireName, dict[str, Any]] = {
    "responses": {
        "error": {"message": "The encrypted content could not be verified.", "code": "invalid_encrypted_content"}
    },
    "messages": {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages.1.content.0: Invalid `signature` in `thinking` block",
        },
    },
}


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("wire", REFUSALS)
def test_refused_thoughts_are_left_out_once(wire: WireName, always: bool, tmp_path: Path) -> None:
    items = conversation(wire, ERROR)
    if wire == "messages":
        items[1]["content"].insert(0, {"type": "thinking", "thinking": "plan", "signature": "of-another-key"})
    else:
        items.insert(1, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of-another-key"})

    def refusing(seen: Seen) -> list[Step]:
        return reply(REFUSALS[wire], 400) if always or "of-another-key" in seen.body.decode() else llm(seen)

    with pair_served(tmp_path, refusing, small) as (server, large, _):
        made = post(server.url, PATHS[wire], asks(wire, items), server.auth)
        metrics = httpx2.get(server.url + "/metrics", headers=server.auth).text
    (row,) = turns(server)
    assert len(large.seen) == 2 and made.status_code == (400 if always else 200)
    assert "of-another-key" in large.seen[0].body.decode() and "of-another-key" not in large.seen[1].body.decode()
    assert row["changed"] == ["model", "thoughts"] and "r2v_stripped_total 1" in metrics
    assert large.seen[1].json["tools"] == large.seen[0].json["tools"]


def test_a_small_model_of_anthropic_s_is_asked_in_its_own_format(tmp_path: Path) -> None:
    with pair_served(tmp_path, llm, lambda seen: reply(whole("messages", CALL)), small_provider="anthropic") as (
        server,
        _,
        little,
    ):
        made = post(server.url, PATHS["chat"], asks("chat", conversation("chat", PAGE)), server.auth)
    assert made.headers["x-r2v-source"] == "small"
    asked = little.seen[0].json
    assert asked["max_tokens"] == 100 and asked["tools"][0]["input_schema"] == LS
    assert "You are an agent" in asked["system"][0]["text"]
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "user"]


def test_a_damaged_bundle_and_an_old_one_are_refused(tmp_path: Path) -> None:
    from r2v.errors import InputError
    from r2v.serve.bundle.domain import read_domain
    from r2v.storage.artifact_manifest import Damaged

    bundle = make_bundle(tmp_path / "bundle")
    (bundle / "domain.json").write_text("{}")
    with pytest.raises(Damaged), pair_served(tmp_path, llm, small):
        pass
    with pytest.raises(InputError, match="not a bundle's domain"):
        read_domain(bundle)
    (bundle / "domain.json").unlink()
    with pytest.raises(InputError, match="export it again"):
        read_domain(bundle)


CALLS = json.dumps({"tool": "ls", "at": "."})


def append(wire: WireName, items: list[dict[str, Any]], reply_: dict[str, Any], page: str) -> None:
    """Extend a conversation as an agent does: with the model's whole reply, and the result of its call."""
    if wire == "messages":
        items.append({"role": "assistant", "content": reply_["content"]})
        call = next(block["id"] for block in reply_["content"] if block["type"] == "tool_use")
        items.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": page}]})
    else:
        items += reply_["output"]
        call = next(item["call_id"] for item in reply_["output"] if item["type"] == "function_call")
        items.append({"type": "function_call_output", "call_id": call, "output": page})


def switched(
    wire: WireName, model: str, folder: Path, sessions: int, thinking: dict[str, Any] | None
) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the statuses of an agent that thinks, in tool loops whose pages hand every other step to the LLM; and the
    turns."""
    statuses = []
    with Emulator(answer=lambda request: CALLS) as emulator:
        url = f"{emulator.anthropic_url}/v1"
        provider = "anthropic" if wire == "messages" else "openai"
        with pair_served(folder, llm, small, f"teacher.provider={provider}", llm_url=url, llm_model=model) as (
            server,
            _,
            _,
        ):
            for session in range(sessions):
                items, headers = (
                    conversation(wire, text=f"Task {session}."),
                    server.auth | {"anthropic-version": "2023-06-01"},
                )
                for step in range(10):
                    body = asks(wire, items) | ({"thinking": thinking, "max_tokens": 4000} if thinking else {})
                    made = post(server.url, PATHS[wire], body, headers)
                    statuses.append(made.status_code)
                    if made.status_code != 200:
                        break
                    append(wire, items, made.json(), ERROR if step % 2 else PAGE)
    return statuses, turns(server)


THINKERS: list[tuple[WireName, str, dict[str, Any] | None]] = [
    ("messages", "claude-opus-4-8", {"type": "adaptive"}),
    ("messages", "claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 1024}),
    ("responses", "gpt-6-luna", None),
]


@pytest.mark.parametrize("wire,model,thinking", THINKERS)
def test_switches_inside_tool_loops_are_never_refused(
    wire: WireName, model: str, thinking: dict[str, Any] | None, tmp_path: Path
) -> None:
    statuses, rows = switched(wire, model, tmp_path, 3, thinking)
    assert set(statuses) == {200} and len(statuses) == 30
    switches = sum(one["source"] != other["source"] for one, other in itertools.pairwise(rows))
    budget = thinking is not None and thinking["type"] == "enabled"
    assert switches == 0 if budget else switches > 20, "within a budget of thoughts the small model does not interrupt"
    assert any("thoughts" in row["changed"] for row in rows) is False


def test_the_same_switches_by_hand_are_refused() -> None:
    """Two models of one provider, each shown the other's whole output: the server prevents that."""
    refused = 0
    with Emulator(answer=lambda request: CALLS) as emulator:
        headers = {"authorization": "Bearer x", "anthropic-version": "2023-06-01"}
        for wire, models in (
            ("messages", ("claude-opus-4-8", "claude-sonnet-4-6")),
            ("responses", ("gpt-6-luna", "gpt-6.1-terra")),
        ):
            items = conversation(wire)
            for step in range(6):
                more: dict[str, Any] = {"model": models[step % 2]}
                more |= {"thinking": {"type": "adaptive"}, "max_tokens": 4000} if wire == "messages" else {}
                made = post(emulator.anthropic_url, PATHS[wire], asks(wire, items, **more), headers)  # type: ignore[index]
                refused += made.status_code == 400
                if made.status_code == 200:
                    append(wire, items, made.json(), PAGE)  # type: ignore[arg-type]
    assert refused >= 4

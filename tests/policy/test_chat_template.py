"""Chat templates as shipped with models: every text reaches the prompt, the same on every day, and so do the tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from functools import cache

import pytest

from r2v.config import Price
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.errors import UsageError
from r2v.llm.local.decode import Drawn
from r2v.llm.local.token_replies import TokenReplies
from r2v.policy import chat_template
from r2v.policy.chat_template import ChatTemplate, ToolForm, in_order, with_stopped_clock
from r2v.policy.prefix_tree import IGNORED
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.policy.training.rows import build_rows
from r2v.wire.message import Message, ToolSpec
from tests import tiny_models
from tests.policy.chat_templates import TEMPLATES, tokenizer
from tests.trust import drawn

GOAL = "reach the sluice\nbefore 9 o'clock"
OBSERVATIONS = [f'room {i}: a "door" to r{i}07\n<li>{word} & {{x}}</li>\nend {i}' for i, word in enumerate("abcd")]
ACTIONS = [f'{{"tool":"open","id":"r{i}07","note":"tür \\"{i}\\""}}' for i in range(3)]
TOOLS = (
    ToolSpec(name="look", description="See the page again."),
    ToolSpec(
        name="open",
        description="Open a door by its number.",
        parameters={
            "type": "object",
            "properties": {"id": {"type": "string", "description": "the number"}, "note": {"type": "string"}},
            "required": ["id"],
        },
    ),
)

FOLDED = {"cohere", "cohere2", "diffusion_gemma", "gemma", "gemma3", "gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5"}
FOLDED |= {"gptoss", "llava_next", "phi3", "phi3_5"}
"""Templates without a role for observations beside plain actions; their training variants are left out."""


EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
DROPPED = {"qwen3": EMPTY_THOUGHT}
"""Template -> end of its prompts that it leaves out of the history."""
SPACED = {"idefics3", "llava_next", "smolvlm"}
"""Templates that write a space before earlier replies, which may be part of a reply's first token."""
ENDLESS = {"glm4moe"}
"""Templates that write no end token after a reply."""
ORIGINALS = [name for name in TEMPLATES if not name.endswith("_training")]
PLAYED = [*ORIGINALS, *drawn([name for name in TEMPLATES if name.endswith("_training")], 2, "training templates")]


@cache
def _encoder(name: str, *, enable_thinking: bool = False) -> Encoder:
    return Encoder(tokenizer(TEMPLATES[name]), max_seq_len=100_000, reserve=60, enable_thinking=enable_thinking)


def _texts(encoder: Encoder, steps: int) -> str:
    messages = build_messages(GOAL, OBSERVATIONS[: steps + 1], ACTIONS[:steps])
    return str(encoder.tokenizer.decode(encoder(messages)))


def _lines(steps: int, form: ToolForm | None = None) -> Iterator[str]:
    """Yield the lines that the prompt must contain, in order."""
    yield from GOAL.split("\n")
    for step in range(steps + 1):
        yield from OBSERVATIONS[step].split("\n")
        if step < steps:
            yield ACTIONS[step] if form is None else form.text(ACTIONS[step])


def _read(text: str) -> str:
    """Return a prompt with JSON's escapes undone, for some templates show observations as JSON strings."""
    return text.replace("\\n", "\n").replace('\\"', '"')


def test_trl_ships_thirty_templates_and_more() -> None:
    assert len(ORIGINALS) >= 30  # TRL 1.12 has 34


@pytest.mark.parametrize("name", PLAYED)
def test_every_text_of_every_template_arrives_on_every_day(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, base = _encoder(name), name.removesuffix("_training")
    told = Encoder(encoder.tokenizer, max_seq_len=100_000, reserve=60, tools=TOOLS)
    prompts, ids = [], [told(build_messages(GOAL, OBSERVATIONS[: t + 1], ACTIONS[:t])) for t in range(4)]
    steps_ids = [prompt + told.action_ids(action) for prompt, action in zip(ids, ACTIONS, strict=False)]
    continues = all(after[: len(step)] == step for step, after in zip(steps_ids, ids[1:], strict=True))
    assert continues == (base not in SPACED and name not in {*DROPPED, *ENDLESS})
    for steps in range(4):
        text = _texts(encoder, steps)
        assert in_order(_read(text), [_read(line) for line in _lines(steps)]), text
        with_tools = _texts(told, steps)
        shown = [_read(line) for line in _lines(steps, told.template.form)]
        assert in_order(_read(with_tools), shown), with_tools
        assert all(spec.name in with_tools and spec.description in with_tools for spec in TOOLS)
        asked = "one JSON object on one line" if told.template.form is None else "Call exactly one tool"
        assert asked in with_tools and "the number" in with_tools
        prompts += [text, with_tools]
    assert encoder.template.fold.tool == (base in FOLDED)

    class Christmas(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Christmas:  # type: ignore[override]
            return cls(2031, 12, 24)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Christmas)
    later = [
        _texts(Encoder(tokenizer(TEMPLATES[name]), max_seq_len=100_000, reserve=60, tools=tools), steps)
        for steps in range(4)
        for tools in ((), TOOLS)
    ]
    assert later == prompts and "2031" not in "".join(later)


def _learned(encoder: Encoder) -> list[str]:
    """Return the texts that an episode teaches, after finding every step at its position in the prompt of play."""
    steps = [
        Step(step_idx=i, observation=Observation(raw_text=page), action=Action(raw_text=action))
        for i, (page, action) in enumerate(zip(OBSERVATIONS, ACTIONS, strict=False))
    ]
    about = EpisodeMetadata(task_id="t", goal=GOAL, benchmark="toy", split="train")
    rows = build_rows([Episode(episode_id="t/s1", success=True, metadata=about, steps=tuple(steps))], encoder).rows
    for t, action in enumerate(ACTIONS):
        prompt = encoder(build_messages(GOAL, OBSERVATIONS[: t + 1], ACTIONS[:t]))
        reply, end = encoder.action_ids(action), len(prompt) + len(encoder.action_ids(action))
        assert any(row.ids[:end] == prompt + reply and row.labels[len(prompt) : end] == reply for row in rows)
    taught = [token for row in rows for token in row.labels if token != IGNORED]
    return str(encoder.tokenizer.decode(taught)).split(encoder.tokenizer.eos_token)[:-1]


@pytest.mark.parametrize("name", PLAYED)
def test_a_reply_is_learned_after_the_prompt_at_play_and_shown_after_the_same_text(name: str) -> None:
    encoder = _encoder(name)
    openings = [text.removesuffix(action) for text, action in zip(_learned(encoder), ACTIONS, strict=True)]
    for t, action in enumerate(ACTIONS):
        prompt, next_prompt = _texts(encoder, t), _texts(encoder, t + 1)
        space = " " if name.removesuffix("_training") in SPACED else ""
        assert next_prompt.startswith(prompt.removesuffix(DROPPED.get(name, "")) + space + action)
        assert prompt.endswith(DROPPED.get(name, "")) and prompt.endswith(openings[t])
    expected = {"gptoss": "<|channel|>final<|message|>", "glm4moe": "\n", "muse_glimmer": " to=user<|message|>"}
    assert set(openings) == {expected.get(name.removesuffix("_training"), "")}


@pytest.mark.parametrize("name", ["glm4moe", "nemotron_3_nano", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"])
def test_a_thought_that_the_template_opens_is_closed_in_the_prompt_and_the_end_is_learned(name: str) -> None:
    thinking, plain = _encoder(name, enable_thinking=True), _encoder(name)
    assert {text.partition("{")[0].strip() for text in _learned(thinking)} <= {"</think>", "<think></think>"}
    tails = {_texts(encoder, 2).rpartition("assistant")[2].replace("\n", "") for encoder in (thinking, plain)}
    assert len(tails) == 1 and tails.pop().endswith("<think></think>")


OPENING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('[/THINK]')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>[THINK]\n{% endif %}"
)
"""A template that always opens a thought, and drops thoughts from the history."""


def test_a_thought_that_history_drops_is_closed_by_the_tag_that_the_template_looks_for() -> None:
    encoder = Encoder(tokenizer(OPENING), max_seq_len=1000, reserve=8)
    assert _texts(encoder, 1).endswith("<|assistant|>[THINK]\n\n[/THINK]\n\n")
    assert f"<|assistant|>{ACTIONS[0]}<|tool|>" in _texts(encoder, 1)
    assert [text.removesuffix(action) for text, action in zip(_learned(encoder), ACTIONS, strict=True)] == [
        "\n[/THINK]\n\n"
    ] * 3


def test_a_thought_that_nothing_closes_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"tokenizer: its chat template opens \[THINK\] .* never closes it; set policy"
    ):
        Encoder(tokenizer(OPENING.replace(".split('[/THINK]')[-1]", "")), max_seq_len=1000, reserve=8)


def test_without_the_stopped_clock_a_prompt_would_change() -> None:
    """It shows that the test above can fail: three of the templates ask for the date."""
    asking = {name for name, text in TEMPLATES.items() if "strftime_now" in text}
    assert {"llama3_2", "gptoss", "muse_glimmer"} <= asking
    made = tokenizer(TEMPLATES["llama3_2"])
    turns = [{"role": "user", "content": "hello"}]
    today = made.apply_chat_template(turns, tokenize=False)
    stopped = made.apply_chat_template(turns, tokenize=False, chat_template=with_stopped_clock(made.chat_template))
    assert "Today Date: 26 Jul 2024" in stopped and stopped != today
    assert stopped.replace("26 Jul 2024", datetime.now().strftime("%d %b %Y")) == today


@pytest.mark.parametrize("before", ["", "\n", "  {% if true %}\n"])
def test_a_stopped_clock_answers_any_format_and_leaves_the_rest_of_the_template_alone(before: str) -> None:
    rest = "{{ messages[0].content }}{% if true %}\n  x\n{% endif %}" + ("{% endif %}" if "if" in before else "")
    clock = before + "{{ strftime_now('%A %d %B %Y, %H:%M') }}{{ strftime_now(format='%Y-%m-%d') }}" + rest
    made, turns = tokenizer(clock), [{"role": "user", "content": "hello"}]
    plain = before + "{{ 'Friday 26 July 2024, 00:00' }}{{ '2024-07-26' }}" + rest
    assert made.apply_chat_template(turns, tokenize=False, chat_template=with_stopped_clock(clock)) == (
        made.apply_chat_template(turns, tokenize=False, chat_template=plain)
    )
    assert with_stopped_clock(plain) is plain


def test_what_is_folded_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    chat_template.say_once.cache_clear()
    made = tokenizer(TEMPLATES["gemma"])
    with caplog.at_level(logging.INFO, "r2v"):
        for _ in range(3):
            template = Encoder(made, max_seq_len=20_000, reserve=60, tools=TOOLS).template
    assert template.fold.tool and template.fold.system and not template.native_tools
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "roles=tool,system" in lines[0]
    assert "tools=2 rendered_by=system_prompt" in lines[1]


def test_the_template_tells_the_tools_where_it_has_a_place_for_them() -> None:
    for native, names in [
        (True, ("llama3_1", "llama3_2", "qwen2_5", "qwen3", "glm4moe", "gptoss", "lfm2")),
        (False, ("llama3", "phi3", "gemma", "gemma3", "deepseekv3", "qwen2_5_vl", "smolvlm")),
    ]:
        for name in names:
            assert ChatTemplate(tokenizer(TEMPLATES[name]), TOOLS).native_tools == native, name


def test_a_tool_that_a_template_tells_in_part_is_told_in_the_system_prompt() -> None:
    forgetful = TEMPLATES["qwen2_5"].replace("tool | tojson", "tool.function.name")
    assert forgetful != TEMPLATES["qwen2_5"]
    template = ChatTemplate(tokenizer(forgetful), TOOLS)
    assert not template.native_tools and "Open a door by its number." in template.preamble


def test_the_tools_stand_beside_a_conversations_own_system_prompt() -> None:
    encoder = Encoder(tokenizer(TEMPLATES["phi3"]), max_seq_len=10_000, reserve=60, tools=TOOLS)
    messages = build_messages("go", ["a door"], [], system="be brief")
    assert in_order(encoder.tokenizer.decode(encoder(messages)), ["<|system|>", "be brief", "look", "<|user|>", "go"])


def test_tools_that_leave_too_little_room_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    chat_template.say_once.cache_clear()
    with caplog.at_level(logging.INFO, "r2v"):
        encoder = Encoder(tokenizer(TEMPLATES["llama3"]), max_seq_len=900, reserve=60, tools=TOOLS)
    assert encoder.template.tools == () and "raise policy.max_seq_len" in caplog.text
    assert "tools in prompts" not in caplog.text


def test_a_template_that_loses_the_users_words_or_draws_at_random_is_refused() -> None:
    with pytest.raises(UsageError, match="drops texts of a conversation"):
        Encoder(tokenizer("{{ messages[-1].content }}"), max_seq_len=1000, reserve=8)
    with pytest.raises(UsageError, match="draws at random"):
        Encoder(tokenizer(tiny_models.TEMPLATE + "{{ range(90000) | random }}"), max_seq_len=1000, reserve=8)


def test_roles_that_must_alternate_are_joined() -> None:
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
        "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    encoder = Encoder(tokenizer(strict), max_seq_len=1000, reserve=8)
    messages = [Message(role="system", content="s"), *build_messages("g", ["o0", "o1"], ["a0"])]
    assert encoder.tokenizer.decode(encoder(messages)) == "[user]s\n\ng\n\no0[assistant]a0[user]o1"


# Actions in the form in which the chat templates write calls; and back.

TYPED_TOOLS = (
    ToolSpec(
        name="open",
        description="Open a door.",
        parameters={
            "type": "object",
            "properties": {"id": {"type": "string"}, "times": {"type": "integer"}, "why": {}},
            "required": ["id"],
        },
    ),
    ToolSpec(name="look", description="See the page again."),
)
CALLS = [
    {"tool": "open", "id": "r2"},
    {"tool": "look"},
    {"tool": "open", "id": "204", "times": 3, "why": ["it's", {"a": None, "b": [True, 1.5]}]},
    {"tool": "open", "id": 'say "so"\n\n- <b> & \\\\ tür \U0001f511', "why": "because"},
]
FORMED = {
    "glm4moe": "<arg_key>",
    "llama3_1": '"parameters": {',
    "nemotron_3_nano": "<function=",
    "qwen2_5": "<tool_call>",
    "qwen3": "<tool_call>",
    "qwen3_5_nothink": "<function=",
    "qwen3_6": "<function=",
}
"""Template -> a word of its form."""
UNFORMED = {
    "gemma": "tells no tools",
    "gemma4": "ends a call otherwise than a reply",
    "gptoss": "has a channel for calls",
}


def form_of(name: str) -> ToolForm | None:
    return ChatTemplate(tokenizer(TEMPLATES[name]), TYPED_TOOLS).form


@pytest.mark.parametrize("name", FORMED)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call["tool"])
def test_an_action_goes_into_the_template_s_form_and_comes_back(name: str, call: dict[str, object]) -> None:
    form, line = form_of(name), json.dumps(call, ensure_ascii=False)
    assert form is not None
    text = form.text(line)
    assert (FORMED[name] in text or "id" not in call) and line not in text
    assert [json.loads(action) for action in form.actions(text)] == [call]
    assert [json.loads(action) for action in form.actions(f"I shall.\n{text}")] == [call]


@pytest.mark.parametrize("name", FORMED)
def test_what_is_no_call_stays_as_it_is(name: str) -> None:
    form = form_of(name)
    assert form is not None
    for action in ("click [12]", '{"tool":"unheard","id":"r2"}', '{"tool":"open","id":', ""):
        assert form.text(action) == action and form.actions(action) == (action,)


def test_words_and_several_calls_of_a_log_are_one_turn_and_come_back_as_several_actions() -> None:
    form = form_of("qwen2_5")
    assert form is not None
    text = form.text('Both doors.\n{"tool":"open","id":"r1"}\n{"tool":"open","id":"r2"}')
    assert text.startswith("Both doors.\n<tool_call>") and text.count("<tool_call>") == 2
    assert form.actions(text) == ('{"tool":"open","id":"r1"}', '{"tool":"open","id":"r2"}')


@pytest.mark.parametrize("name", UNFORMED)
def test_a_template_whose_calls_do_not_stand_where_a_reply_does_has_no_form(name: str) -> None:
    assert form_of(name) is None


def test_a_model_is_prompted_trained_and_read_in_its_form() -> None:
    encoder = Encoder(tokenizer(TEMPLATES["qwen2_5"]), max_seq_len=10_000, reserve=60, tools=TYPED_TOOLS)
    action = '{"tool":"open","id":"r2"}'
    learned = encoder.tokenizer.decode(encoder.action_ids(action)[:-1])
    assert learned == '<tool_call>\n{"name": "open", "arguments": {"id": "r2"}}\n</tool_call>'
    assert encoder.actions(learned) == (action,)
    talk = [Message(role="user", content="go"), Message(role="tool", content="a page")]
    shown = encoder.tokenizer.decode(encoder([*talk, Message(role="assistant", content=action), talk[1]]))
    assert learned in shown and action not in shown and "Call exactly one tool" in shown
    replies = TokenReplies(
        encoder.tokenizer, "slm", Price(input=1, output=1, seconds_per_call=0, seconds_per_token=0), encoder.actions
    )
    ids = encoder.action_ids(action)
    drawn = Drawn(
        tokens=ids, logprobs=[0.0] * len(ids), entropies=[0.0] * len(ids), margins=[0.0] * len(ids), ended=True
    )
    (said,) = replies.reply(9, [drawn]).samples
    assert said.text == action and "".join(said.tokens[:-1]) == learned
    bare = Encoder(encoder.tokenizer, max_seq_len=10_000, reserve=60)
    assert bare.actions(learned) == (learned,), "who is told no tools has no form"

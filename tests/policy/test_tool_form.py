"""Actions in the form in which chat templates, as models come with them, write calls; and back."""

from __future__ import annotations

import json

import pytest

from r2v.config import Price
from r2v.llm.local.decode import Drawn
from r2v.llm.local.wording import TokenReplies
from r2v.policy.chat_template import ChatTemplate
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.tool_form import ToolForm
from r2v.wire.message import Message, ToolSpec
from tests.policy.chat_templates import TEMPLATES, tokenizer

TOOLS = (
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
    return ChatTemplate(tokenizer(TEMPLATES[name]), TOOLS).form


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
    encoder = Encoder(tokenizer(TEMPLATES["qwen2_5"]), max_seq_len=10_000, reserve=60, tools=TOOLS)
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

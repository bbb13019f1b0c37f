from __future__ import annotations

import pytest

from r2v.llm.types import Sample
from r2v.router.spans import argument_spans, free_tokens
from r2v.wire.message import ToolSpec

REPLY = ToolSpec(
    name="reply",
    description="",
    parameters={
        "type": "object",
        "properties": {"id": {"type": "string"}, "text": {"type": "string", "x-free": True}},
    },
)
TEXT = '{"tool":"reply","id":"r204","text":"it is done"}'


def sample(*tokens: str, text: str = TEXT) -> Sample:
    return Sample(text=text, tokens=tokens, logprobs=(0.0,) * len(tokens), entropies=(0.0,) * len(tokens))


def test_argument_spans_cover_the_values() -> None:
    text = '{ "tool": "reply", "n": 12, "deep": {"a": [1, "}"]}, "text": "a \\"b\\", c" }'
    found = {name: text[start:stop] for name, (start, stop) in argument_spans(text, text).items()}
    assert found == {"n": "12", "deep": '{"a": [1, "}"]}', "text": '"a \\"b\\", c"'}


def test_argument_spans_of_what_is_no_tool_call() -> None:
    assert argument_spans(TEXT, "click [12]") == {} == argument_spans(TEXT, '{"tool":"reply","id":')


def test_of_an_argument_that_is_given_twice_the_last_counts() -> None:
    text = '{"tool":"reply","text":"a","id":"r2","text":"a"}'
    assert argument_spans(text, text) == {"text": (44, 47), "id": (32, 36)}


CALLS = (
    '<tool_call>\n{"name": "reply", "arguments": {"id": "r204", "text": "it is done"}}\n</tool_call>',
    "<tool_call>\n<function=reply>\n<parameter=id>\nr204\n</parameter>\n<parameter=text>\nit is done\n</parameter>\n"
    "</function>\n</tool_call>",
    "<tool_call>reply\n<arg_key>id</arg_key>\n<arg_value>r204</arg_value>\n<arg_key>text</arg_key>\n"
    "<arg_value>it is done</arg_value>\n</tool_call>",
)


@pytest.mark.parametrize("said", CALLS)
def test_free_values_are_found_in_the_form_that_a_template_gives_calls(said: str) -> None:
    marks = free_tokens(sample(*said), [REPLY])
    assert "".join(token for token, mark in zip(said, marks, strict=True) if mark).strip('"') == "it is done"


def test_one_token_per_pair() -> None:
    tokens = ('{"tool":"reply"', ',"id":"r204"', ',"text":"it is done"', "}", "")
    assert free_tokens(sample(*tokens), [REPLY]) == (False, False, True, False, False)


def test_several_tokens_per_word() -> None:
    tokens = (
        '{"tool',
        '":"',
        "reply",
        '","id":"',
        "r2",
        "04",
        '","',
        "text",
        '":',
        '"it',
        " is",
        " do",
        'ne"',
        "}",
        "<eos>",
    )
    free = [token for token, mark in zip(tokens, free_tokens(sample(*tokens), [REPLY]), strict=True) if mark]
    assert free == ['"it', " is", " do", 'ne"']


def test_tokens_before_the_text_shift_the_offsets() -> None:
    assert free_tokens(sample(" ", TEXT[:27], TEXT[27:]), [REPLY]) == (False, False, True)


def test_tokens_that_do_not_spell_the_text_are_never_free() -> None:
    assert free_tokens(sample('{"tool":"reply"', "\ufffd"), [REPLY]) == (False, False)


def test_another_tool_frees_nothing() -> None:
    other = TEXT.replace("reply", "write")
    assert free_tokens(sample(other, text=other), [REPLY]) == (False,)

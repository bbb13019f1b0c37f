from __future__ import annotations

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
    found = {name: text[start:stop] for name, (start, stop) in argument_spans(text).items()}
    assert found == {"tool": '"reply"', "n": "12", "deep": '{"a": [1, "}"]}', "text": '"a \\"b\\", c"'}


def test_argument_spans_of_what_is_no_tool_call() -> None:
    assert argument_spans("click [12]") == {} == argument_spans('{"tool":"reply","id":')


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

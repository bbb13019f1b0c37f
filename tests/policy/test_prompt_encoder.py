"""The encoder: cached segments equal the template, and protected messages stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from r2v.config import PolicyConfig, identity
from r2v.errors import InputError, UsageError
from r2v.policy.chat_template import ChatTemplate
from r2v.policy.prompt_encoder import ELIDED, Encoder, Segments, build_messages
from r2v.randomness import generator
from r2v.wire.message import Message, ToolSpec
from tests import tiny_models


def _conversation(steps: int, words: int = 6) -> tuple[Message, ...]:
    observations = [" ".join(f"w{(s * 7 + i) % 48}" for i in range(words)) for s in range(steps + 1)]
    return build_messages("open door w1", observations, [f"get w{s % 48}" for s in range(steps)], system="done")


def _encoder(max_seq_len: int = 200, reserve: int = 8, template: str = tiny_models.TEMPLATE) -> Encoder:
    return Encoder(tiny_models.tokenizer(template), max_seq_len=max_seq_len, reserve=reserve)


def _full(encoder: Encoder, messages: tuple[Message, ...]) -> list[int]:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    ids: list[int] = encoder.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return ids


def test_messages_alternate_and_end_in_the_newest_observation() -> None:
    messages = build_messages("goal", ["o0", "o1"], ["a0"])
    assert [(m.role, m.content) for m in messages] == [
        ("user", "goal"),
        ("tool", "o0"),
        ("assistant", "a0"),
        ("tool", "o1"),
    ]
    with pytest.raises(ValueError):
        build_messages("goal", ["o0"], ["a0"])


def test_segments_joined_equal_the_template() -> None:
    encoder = _encoder()
    assert encoder.concatenative
    for steps in range(6):
        assert encoder(_conversation(steps)) == _full(encoder, _conversation(steps))


def test_a_template_that_looks_around_is_rendered_whole() -> None:
    counting = tiny_models.TEMPLATE.replace("{{ m.content }}", "w{{ messages | length }} {{ m.content }}")
    encoder = _encoder(template=counting)
    assert not encoder.concatenative
    assert encoder(_conversation(3)) == _full(encoder, _conversation(3))


def test_a_template_without_tool_role_gets_user_turns() -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    encoder = _encoder(template=strict)
    text = encoder.tokenizer.decode(encoder(build_messages("open", ["door", "key"], ["get"])))
    assert text.split() == ["<user>", "open", "door", "<assistant>", "get", "<user>", "key", "<assistant>"]


@pytest.mark.parametrize("limit", range(24, 90, 3))
def test_forgets_oldest_first_and_keeps_goal_and_newest(limit: int) -> None:
    encoder, messages = _encoder(limit + 8, 8), _conversation(6)
    prompt = encoder.prompt(messages)
    words = encoder.tokenizer.decode(prompt.ids).split()
    assert len(prompt.ids) <= limit
    assert prompt.elided == (len(_full(encoder, messages)) > limit)
    assert "open door w1" in " ".join(words)
    newest = messages[-1].content
    assert " ".join(words[:-1]).endswith(newest) or (ELIDED in words[-10:] and newest.split()[0] in words)
    kept = [m.content for m in messages if m.role == "tool" and m.content in " ".join(words)]
    observations = [m.content for m in messages if m.role == "tool"]
    assert kept == observations[len(observations) - len(kept) :]


COUNTING = tiny_models.TEMPLATE.replace("{{ m.content }}", "w{{ messages | length }} {{ m.content }}")
"""A template that reads all messages, so that the whole conversation is rendered again."""
FOLDING = tiny_models.TEMPLATE.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
"""A template without observations, so that they become user messages."""


def _long(number: int, steps: int, words: int) -> tuple[Message, ...]:
    draw = generator("elision", number)
    pages = [" ".join(f"w{draw.randrange(48)}" for _ in range(draw.randint(0, words))) for _ in range(steps + 1)]
    return build_messages(f"open w{number % 48}", ["w0", *pages[1:]], [f"get w{draw.randrange(48)}"] * steps)


@pytest.mark.parametrize("template", [tiny_models.TEMPLATE, COUNTING, FOLDING])
def test_what_fits_is_whole_and_what_does_not_is_cut_to_fit(template: str) -> None:
    tokenizer, cut = tiny_models.tokenizer(template), 0
    for number in range(80):
        draw = generator("limit", number)
        limit, messages = draw.randint(20, 140), _long(number, draw.randint(0, 12), draw.randint(3, 80))
        encoder = Encoder(tokenizer, max_seq_len=limit + 8, reserve=8)
        prompt = encoder.prompt(messages)
        whole = encoder.template.render(encoder.template.turns(messages), generation=True)
        assert len(prompt.ids) <= limit
        assert prompt.elided or prompt.ids == tuple(whole)
        assert prompt.elided or len(whole) <= limit
        assert len(whole) > limit - 8 or not prompt.elided, "estimates are off by little"
        assert prompt == Encoder(tokenizer, max_seq_len=limit + 8, reserve=8).prompt(messages)
        cut += prompt.elided
    assert cut > 30


@pytest.mark.parametrize("template", [tiny_models.TEMPLATE, COUNTING.replace("length", "first | length"), FOLDING])
def test_the_beginning_of_a_prompt_lasts_over_several_steps(template: str) -> None:
    pages = [" ".join(f"w{(7 * s + i) % 48}" for i in range(40)) for s in range(40)]
    encoder = Encoder(tiny_models.tokenizer(template), max_seq_len=600, reserve=8)
    prompts = [encoder(build_messages("open w1", pages[: t + 1], ["get w2"] * t)) for t in range(40)]
    assert max(map(len, prompts)) <= 592 and min(map(len, prompts[14:])) > 592 * 0.4
    begins = [a[:-1] == b[: len(a) - 1] for a, b in pairwise(prompts)]
    assert sum(begins) >= 33, "all but one in seven or more"


def test_a_page_longer_than_the_context_keeps_its_ends_and_the_actions_so_far() -> None:
    page = " ".join(f"w{i % 48}" for i in range(3000))
    for template in (tiny_models.TEMPLATE, COUNTING):
        encoder = Encoder(tiny_models.tokenizer(template), max_seq_len=200, reserve=8)
        words = encoder.tokenizer.decode(encoder(build_messages("open", [page] * 6, ["get w7"] * 5))).split()
        assert words.count("get") == 5 and words.count(ELIDED) == 6
        assert words[-2] == page.split()[-1] and len(words) > 180


def test_sizes_are_counted_once_and_not_by_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(tiny_models.tokenizer(), max_seq_len=600, reserve=8)
    encoder(_long(1, 30, 60))
    rendered: list[int] = []
    text = encoder.template.text
    monkeypatch.setattr(encoder.template, "text", lambda *a, **k: (rendered.append(1), text(*a, **k))[1])
    for steps in range(31, 41):
        assert encoder.prompt(_long(1, steps, 60)).elided
    assert len(rendered) <= 10 * 41 * 2
    counting = Encoder(tiny_models.tokenizer(COUNTING), max_seq_len=600, reserve=8)
    counting(_long(1, 30, 60))
    render = counting.template.render
    rendered.clear()
    monkeypatch.setattr(counting.template, "render", lambda *a, **k: (rendered.append(1), render(*a, **k))[1])
    for steps in range(31, 41):
        assert counting.prompt(_long(1, steps, 60)).elided
    assert len(rendered) <= 20, "at most two a step"


def test_a_bundled_model_is_not_told_its_tools_and_any_other_is() -> None:
    tokenizer, tools = tiny_models.tokenizer(), (ToolSpec(name="get", description="get it"),)
    bundled = Encoder.of(tokenizer, PolicyConfig(), 24, tools)
    other = Encoder.of(tokenizer, PolicyConfig(model_name="some/model"), 24, tools)
    asked_not = Encoder.of(tokenizer, PolicyConfig(model_name="some/model", tools="none"), 24, tools)
    assert [len(encoder.template.tools) for encoder in (bundled, other, asked_not)] == [0, 1, 0]


@pytest.mark.parametrize("thinking", [None, False, True])
def test_enable_thinking_reaches_the_template_of_any_model_but_a_bundled_one(thinking: bool | None) -> None:
    tokenizer = tiny_models.tokenizer(tiny_models.TEMPLATE + "{% if enable_thinking %}w1{% else %}w2{% endif %}")
    for name, word in (("tiny", "w2"), ("some/model", "w1" if thinking else "w2")):
        policy = PolicyConfig(model_name=name, enable_thinking=thinking)
        ids = Encoder.of(tokenizer, policy, 24)(build_messages("open", ["door"], []))
        assert tokenizer.decode(ids).split()[-1] == word
        assert identity(policy).get("enable_thinking") == (None if name == "tiny" else bool(thinking))


def test_a_goal_that_cannot_fit_is_refused() -> None:
    with pytest.raises(InputError, match="goal is too long"):
        _encoder(24, 8).prompt(build_messages(" ".join(["w1"] * 30), ["key"], []))


def test_a_tokenizer_without_template_is_refused() -> None:
    bare = tiny_models.tokenizer()
    bare.chat_template = None
    with pytest.raises(UsageError, match="chat template"):
        Encoder(bare, max_seq_len=64, reserve=8)
    with pytest.raises(UsageError, match="max_seq_len"):
        _encoder(8, 8)


# Segments: each message tokenised once, long ones at their ends, in little memory and from any thread.


class _Counting:
    """A tokenizer that counts the characters it was given."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.read = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, text: str, **options: Any) -> Any:
        self.read += len(text)
        return self.inner(text, **options)


def _segments(longest: int = 100, remember: int = 10_000) -> tuple[Segments, _Counting]:
    counting = _Counting(tiny_models.tokenizer())
    return Segments(ChatTemplate(counting), longest, remember), counting


def _page(words: int, first: int = 0) -> Message:
    return Message(role="tool", content=" ".join(f"w{(first + i) % 48}" for i in range(words)))


def test_a_message_is_tokenised_once_and_its_size_is_kept_longer() -> None:
    segments, tokenizer = _segments(2000, remember=2000)
    pages = [_page(1000, first) for first in range(4)]
    sizes = [segments.size("user", page) for page in pages]
    assert sizes == [1001] * 4, "the role and each word"
    read = tokenizer.read
    assert [segments.size("user", page) for page in pages] == sizes and tokenizer.read == read
    assert len(segments.ids("user", pages[-1])) == 1001 and tokenizer.read == read
    segments.ids("user", pages[0])
    assert tokenizer.read > read, "more than 2,000 tokens are not kept"


def test_of_a_page_that_no_prompt_can_hold_the_ends_are_read() -> None:
    segments, tokenizer = _segments(60)
    page = _page(5000)
    before = tokenizer.read
    assert segments.size("user", page) > 60
    assert tokenizer.read - before < 0.1 * len(page.content)
    cut = segments.cut("user", page, 60)
    assert cut is not None and len(cut) == 60
    words = tokenizer.decode(cut).split()
    assert words[0] == "<tool>" and "[elided]" in words
    middle = words.index("[elided]")
    assert words[1:middle] == page.content.split()[: middle - 1]
    assert words[middle + 1 :] == page.content.split()[-(60 - middle - 1) :] and abs(2 * middle - 60) < 3


def test_a_long_text_of_few_tokens_is_read_whole() -> None:
    segments, _ = _segments(60)
    page = Message(role="tool", content=" " * 5000 + "w1")
    assert segments.ids("user", page) == segments.ids("user", Message(role="tool", content="w1"))


def test_a_cut_needs_room_for_more_than_what_surrounds_a_message() -> None:
    segments, _ = _segments()
    page = _page(50)
    assert [segments.cut("user", page, room) is None for room in (0, 4, 5, 20)] == [True, True, False, False]


def test_the_same_text_in_another_place_is_another_segment() -> None:
    segments, tokenizer = _segments()
    word = "w1"
    ids = [segments.ids(*key) for key in ((None, Message(role="user", content=word)), ("user", _page(1, 1)))]
    assert [tokenizer.decode(made).split() for made in ids] == [["<user>", "w1"], ["<tool>", "w1"]]
    assert tokenizer.decode(segments.ids("user", None)).split() == ["<assistant>"]
    assert segments.text_size("w1 w2") == 2


def test_threads_get_the_same_ids() -> None:
    segments, _ = _segments(500, remember=700)
    pages = [_page(100 + n % 7, n) for n in range(40)]
    alone = [_segments(500)[0].ids("user", page) for page in pages]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda page: segments.ids("user", page), pages)) == alone
        assert list(pool.map(lambda page: segments.size("user", page), pages)) == [len(ids) for ids in alone]


def test_a_template_that_looks_around_does_not_concatenate() -> None:
    counting = tiny_models.TEMPLATE.replace("{{ m.content }}", "w{{ messages | length }} {{ m.content }}")
    for template, expected in ((tiny_models.TEMPLATE, True), (counting, False)):
        assert Segments(ChatTemplate(tiny_models.tokenizer(template)), 100, 100).concatenate() is expected

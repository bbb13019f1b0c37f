"""Segments: each message tokenised once, long ones at their ends, in little memory and from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from r2v.policy.chat_template import ChatTemplate
from r2v.policy.segments import Segments
from r2v.wire.message import Message
from tests import tiny_models


class _Counting:
    """A tokenizer that remembers how many characters it was given."""

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


def test_a_template_that_looks_around_does_not_string_together() -> None:
    counting = tiny_models.TEMPLATE.replace("{{ m.content }}", "w{{ messages | length }} {{ m.content }}")
    for template, expected in ((tiny_models.TEMPLATE, True), (counting, False)):
        assert Segments(ChatTemplate(tiny_models.tokenizer(template)), 100, 100).string_together() is expected

"""The documents that teach BabyAI's base to read: each answer is on the page, and is one token."""

from __future__ import annotations

import re

import pytest

from benchmarks.babyai_base import PLACES, TOKEN, VOCABULARY, phrases, recall, where
from benchmarks.small_base import tokenizer_of
from r2v.randomness import generator

PAGES = re.compile(r"<obs>(.*?)<act>(.*?)<eos>", re.DOTALL)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return tokenizer_of(phrases(), TOKEN, VOCABULARY)


def test_every_phrase_of_a_page_is_one_token_and_no_text_is_lost(tokenizer: object) -> None:
    for phrase in ("green key", "red door", "wall", " 63 left", '{"tool":"forward"}', *PLACES):
        assert len(tokenizer(phrase)["input_ids"]) == 1, phrase  # type: ignore[operator]
    strange = 'go to the grey ball (layout "GoToLocal 7")\n{"error":"http 503"} zx0a1b \u00e9\n'
    assert tokenizer.decode(tokenizer(strange)["input_ids"]) == strange  # type: ignore[attr-defined, operator]


@pytest.mark.parametrize("number", range(10))
def test_recall_asks_for_places_that_stand_behind_their_things(number: int, tokenizer: object) -> None:
    ids, targets = recall(8, True, tokenizer, generator("test", number))
    words = [tokenizer.decode([token]) for token in ids]  # type: ignore[attr-defined]
    places = dict(zip(words[3:26:3], words[4:26:3], strict=True))
    assert len(places) == 8 and len(targets) == 20
    assert all(words[at] == places[words[at - 1]] for at in targets)


@pytest.mark.parametrize("number", range(10))
def test_where_asks_for_the_goals_thing_on_the_newest_page(number: int, tokenizer: object) -> None:
    ids, targets = where(4, 5, tokenizer, generator("test", number))
    text = tokenizer.decode(ids)  # type: ignore[attr-defined]
    goal = re.search(r"go to (?:the|a) (\w+ \w+) \(", text)
    assert goal is not None
    answers = [tokenizer.decode([ids[at]]) for at in targets]  # type: ignore[attr-defined]
    pages = PAGES.findall(text)
    assert len(pages) == len(answers) == 5
    for (page, answer), decoded in zip(pages, answers, strict=True):
        line = next((line for line in page.split("\n") if line.startswith(goal[1])), goal[1] + "wall")
        assert answer == decoded == line.removeprefix(goal[1])

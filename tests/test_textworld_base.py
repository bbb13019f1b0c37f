"""The documents that teach TextWorld's base to read: the expected command names the objective's object."""

from __future__ import annotations

import re

import pytest

from benchmarks.small_base import tokenizer_of
from benchmarks.textworld_base import TOKEN, VERBS, matched, named
from r2v.envs.textworld import call
from r2v.randomness import generator

NAMES = ("key", "type X box", "pair of headphones", "locker", "fly larva")
PAGE = """objective: Your objective is to throw the pair of headphones on the floor of the cellar.
you are in: cellar
exit: west
here: locker, open, with pair of headphones
you carry: nothing
command: close locker
command: examine locker
command: examine pair of headphones
command: take pair of headphones from locker"""
ASKED = re.compile(r"<obs>objective: Please \w+ the ([^.]+)\.(.*?)<act>(.*?)<eos>", re.DOTALL)


@pytest.mark.parametrize("number", range(10))
def test_of_made_up_pages_the_command_that_holds_the_objectives_name_is_told(number: int) -> None:
    words = [f"command: {verb} {name}\nobjective: Please {verb} the {name}." for verb in VERBS for name in NAMES]
    tokenizer = tokenizer_of([*words * 9, call("take key")], TOKEN, 500)
    ids, targets = matched(3, NAMES, tokenizer, generator("test", number))
    pages = ASKED.findall(tokenizer.decode(ids))
    assert len(pages) == 6
    for objective, page, answer in pages:
        (command,) = (line for line in page.split("\ncommand: ")[1:] if line.endswith(objective))
        assert answer == call(command)
    decoded = "".join(tokenizer.decode([ids[at]]) for at in targets)
    assert decoded == "".join(answer.split('"')[7] for _, _, answer in pages)


def test_what_names_the_objectives_thing_is_a_command_that_does_something_to_it() -> None:
    assert named(PAGE) == "take pair of headphones from locker"
    assert named(PAGE.replace("throw the pair of headphones", "eat the cashew")) is None

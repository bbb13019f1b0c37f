"""The bundled student: its tokenizer keeps every action intact, its base loads offline and can copy."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.recipes.tiny import TINY_DIR, build_model, build_tokenizer, vocabulary
from benchmarks.recipes.tiny_documents import recall
from benchmarks.recipes.tiny_pretrain import CURRICULUM, accuracy
from benchmarks.recipes.tiny_transcripts import fresh_tasks, transcript_document
from r2v.config import PerturbationsConfig
from r2v.data.split import split_of
from r2v.envs.desk import Desk
from r2v.envs.desk.vocabulary import parse
from r2v.llm.types import Request
from r2v.perturb import wrap
from r2v.randomness import generator
from r2v.wire.message import Message

pytestmark = pytest.mark.numerical


@cache
def noisy_episodes(count: int = 60) -> list[list[Message]]:
    desk = Desk()
    world = wrap(desk.make(), desk, PerturbationsConfig(), "shift", 7)
    episodes = []
    for task in [task for task in desk.tasks() if split_of(task.task_id) == "train"][:count]:
        observation, _ = world.reset(seed=0, task=task)
        messages, over = [Message(role="user", content=task.goal), Message(role="tool", content=observation)], False
        while not over:
            request = Request(messages=tuple(messages), key=(0, task.task_id, len(messages), "teacher"))
            action = desk.expert(request)
            observation, _, terminated, truncated, _ = world.step(action)
            over = terminated or truncated
            messages += [Message(role="assistant", content=action), Message(role="tool", content=observation)]
        episodes.append(messages)
    return episodes


def test_every_action_survives_the_tokenizer_to_the_character() -> None:
    tokenizer = build_tokenizer()
    for messages in noisy_episodes():
        for action in (message.content for message in messages if message.role == "assistant"):
            ids = tokenizer(action + "<eos>").input_ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == action
            assert len(ids) == len(parse(action) or {}) + 2


def test_nothing_the_desk_or_its_hazards_say_is_unknown() -> None:
    tokenizer = build_tokenizer()
    assert len(set(vocabulary())) == len(vocabulary()) < 1100
    for messages in noisy_episodes():
        for message in messages:
            assert tokenizer.unk_token_id not in tokenizer(message.content).input_ids, message.content
    assert tokenizer("never seen before").input_ids == [tokenizer.unk_token_id] * 3


def test_an_episode_is_short_enough_to_learn_from_on_a_cpu() -> None:
    tokenizer = build_tokenizer()
    lengths = sorted(
        len(tokenizer("".join(message.content for message in messages)).input_ids) for messages in noisy_episodes()
    )
    assert lengths[len(lengths) // 2] < 250 and lengths[int(0.9 * len(lengths))] <= 400


def test_the_chat_template_renders_the_conversation_and_drops_the_system_message() -> None:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "close this record"},
        {"role": "tool", "content": '{"note":"ready"}'},
        {"role": "assistant", "content": '{"tool":"more"}'},
        {"role": "tool", "content": '{"note":"saved"}'},
    ]
    text = build_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ('<goal>close this record<obs>{"note":"ready"}<act>{"tool":"more"}<eos><obs>{"note":"saved"}<act>')


def test_the_shipped_base_loads_as_any_model_does_and_is_what_the_code_builds() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_DIR), AutoTokenizer.from_pretrained(TINY_DIR)
    assert model.num_parameters() <= 500_000
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
        name: tuple(value.shape) for name, value in build_model(0).state_dict().items()
    }
    text = '<goal>close this record<obs>{"note":"ready"}<act>'
    assert tokenizer(text).input_ids == build_tokenizer()(text).input_ids


def test_the_shipped_base_copies_and_a_random_one_does_not() -> None:
    documents = [recall(CURRICULUM[-1], generator("test", number)) for number in range(20)]
    assert accuracy(AutoModelForCausalLM.from_pretrained(TINY_DIR), documents) > 0.9
    assert accuracy(build_model(0), documents) < 0.3


def test_random_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, third = build_model(1).state_dict(), build_model(1).state_dict(), build_model(2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_pretraining_sees_no_choice_of_tool_and_no_task_of_the_benchmark() -> None:
    words = vocabulary()
    goals = {task.goal for task in Desk().tasks()}
    for task in fresh_tasks("pretrain", 200)[::10]:
        assert task.goal not in goals
        tokens, targets = transcript_document(task, 0)
        assert targets
        assert all(words[tokens[at]].startswith(',"') for at in targets)


def test_the_recipe_is_shipped_with_its_figures() -> None:
    recipe = json.loads((TINY_DIR / "recipe.json").read_text())
    assert recipe["parameters"] == AutoModelForCausalLM.from_pretrained(TINY_DIR).num_parameters()
    assert recipe["recall_accuracy"] == pytest.approx(0.95, abs=0.05)

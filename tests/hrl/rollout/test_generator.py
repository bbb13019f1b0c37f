"""Generated text: keyed, complete, exact in its ids, with the log-probabilities that an update computes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.prompts import Prompter
from r2v.hrl.types import Completion
from r2v.llm.local.decode import Draw, generate

from ..playing import PROBLEMS, build, save_model, stirred

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module", params=["llama", "lfm2"])
def roles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Roles:
    return stirred(build(save_model(tmp_path_factory.mktemp("model"), request.param)))


def requests(roles: Roles, **options: Any) -> list[GenerationRequest]:
    prompter = Prompter(roles.tokenizer)
    return [
        GenerationRequest(prompt=prompter.answer(PROBLEMS[i % 5], []), key=("k", i), max_tokens=1 + i % 11, **options)
        for i in range(40)
    ]


def test_a_segment_depends_on_its_question_alone(roles: Roles) -> None:
    """It does not depend on the other requests, its position, the size of batches, or earlier requests."""
    wanted = Generator(roles, "actor").generate(requests(roles))
    backwards = Generator(roles, "actor", rows=RolloutRows(rows={"actor": 3}, read=2))
    assert backwards.generate(requests(roles)[::-1])[::-1] == wanted and backwards.passes == 14
    assert [backwards.generate([ask])[0] for ask in requests(roles)] == wanted
    assert len({one.tokens for one in wanted}) > 20


class Narrow(torch.nn.Module):
    """An embedding with room for `most` rows at a time."""

    def __init__(self, inner: torch.nn.Module, most: int) -> None:
        super().__init__()
        self.inner, self.most = inner, most

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if len(ids) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        embedded: torch.Tensor = self.inner(ids)
        return embedded


def test_a_batch_that_does_not_fit_is_made_again_in_halves(roles: Roles, caplog: pytest.LogCaptureFixture) -> None:
    wanted = Generator(roles, "actor").generate(requests(roles))
    rows = RolloutRows(rows={"actor": 32, "guidance": 32}, read=32)
    with roles.using("actor") as model:
        base = model.get_base_model()
    whole = base.get_input_embeddings()
    base.set_input_embeddings(Narrow(whole, 5))
    try:
        assert Generator(roles, "actor", rows=rows).generate(requests(roles)) == wanted
    finally:
        base.set_input_embeddings(whole)
    assert rows == RolloutRows(rows={"actor": 4, "guidance": 32}, read=4), "and so are the batches after it"
    assert "phase=rollout, actor micro_batch=32" in caplog.text


def test_ids_and_log_probabilities_are_those_that_an_update_finds(roles: Roles) -> None:
    for role in ("actor", "guidance"):
        said = Generator(roles, role).generate(requests(roles))  # type: ignore[arg-type]
        rows = pad_sequences([one.prompt for one in said], [one.tokens for one in said])
        with roles.using(role) as model, torch.no_grad():  # type: ignore[arg-type]
            found = completion_logprobs(model, rows)
        for row, mask, one in zip(found, rows.completion, said, strict=True):
            assert len(one.logprobs) == len(one.tokens)
            assert row[mask].tolist() == pytest.approx(one.logprobs, rel=0, abs=1e-9)


def test_they_are_those_that_the_tokens_were_drawn_with(roles: Roles) -> None:
    """Equal to those that decoding itself records, to six digits."""
    questions = requests(roles)
    draws = [
        Draw(prompt=i, key=ask.key, temperature=1.0, top_p=1.0, max_tokens=ask.max_tokens)
        for i, ask in enumerate(questions)
    ]
    with roles.using("actor") as model:
        drawn = generate(model, [ask.prompt for ask in questions], draws, end_ids=frozenset({2}), pad_id=0)
    for one, said in zip(drawn, Generator(roles, "actor").generate(questions), strict=True):
        assert tuple(one.tokens) == said.tokens
        assert one.logprobs == pytest.approx(said.logprobs, rel=0, abs=6e-7)


def test_the_end_token_is_kept_and_what_was_cut_off_says_so(roles: Roles) -> None:
    said = Generator(roles, "actor", version=4).generate(requests(roles))
    ended = [one for one in said if one.ended]
    cut = [one for one in said if not one.ended]
    assert ended and cut and {one.version for one in said} == {4}
    assert all(one.tokens[-1] == 2 and 2 not in one.tokens[:-1] for one in ended)
    for one, ask in zip(said, requests(roles), strict=True):
        assert one.ended or (2 not in one.tokens and len(one.tokens) == ask.max_tokens)
        assert "<eos>" not in one.text and one.text == roles.tokenizer.decode(one.tokens, skip_special_tokens=True)


def test_greedy_draws_nothing_and_log_probabilities_come_where_they_are_wanted(roles: Roles) -> None:
    plain, other = (
        Generator(roles, "actor").generate(
            [
                GenerationRequest(
                    prompt=ask.prompt, key=key, max_tokens=ask.max_tokens, temperature=0.0, return_logprobs=False
                )
                for ask in requests(roles)
            ]
        )
        for key in (("a",), ("b",))
    )
    assert plain == other and {one.logprobs for one in plain} == {()}
    mixed = [
        GenerationRequest(prompt=ask.prompt, key=ask.key, max_tokens=ask.max_tokens, return_logprobs=i % 2 == 0)
        for i, ask in enumerate(requests(roles))
    ]
    for i, (one, whole) in enumerate(
        zip(Generator(roles, "actor").generate(mixed), Generator(roles, "actor").generate(requests(roles)), strict=True)
    ):
        assert one.tokens == whole.tokens and one.logprobs == (whole.logprobs if i % 2 == 0 else ())


def test_a_question_of_several_is_answered_together_and_in_order(roles: Roles) -> None:
    several = requests(roles)
    flat = Generator(roles, "actor").generate(several)
    speaker = Generator(roles, "actor")
    assert speaker.answer([tuple(several[:3]), (several[3],), tuple(several[4:])]) == [
        tuple(flat[:3]),
        (flat[3],),
        tuple(flat[4:]),
    ]
    assert speaker.passes == 1


def test_two_voices_on_one_base_at_the_same_time_keep_their_own(roles: Roles) -> None:
    wanted = {role: Generator(roles, role).generate(requests(roles)) for role in ("actor", "guidance")}  # type: ignore[arg-type]
    assert [one.tokens for one in wanted["actor"]] != [one.tokens for one in wanted["guidance"]]
    heard: dict[tuple[str, int], list[Completion]] = {}
    start = threading.Barrier(4)

    def speak(role: Any, number: int) -> None:
        start.wait(10)
        heard[role, number] = Generator(roles, role, rows=RolloutRows(rows={role: 2}, read=2)).generate(requests(roles))

    threads = [threading.Thread(target=speak, args=(role, i)) for i in range(2) for role in ("actor", "guidance")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heard) == 4 and all(said == wanted[role] for (role, _), said in heard.items())


def test_a_new_voice_speaks_with_the_weights_as_they_are(tmp_path: Path) -> None:
    roles = build(save_model(tmp_path))
    before = Generator(roles, "actor").generate(requests(roles))
    stirred(roles)
    assert Generator(roles, "actor").generate(requests(roles)) != before

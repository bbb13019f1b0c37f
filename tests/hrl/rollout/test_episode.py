"""Episodes run side by side, each request waits for its inputs, and no secret leaks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import GuidanceConfig, HierarchicalConfig, RolloutConfig
from r2v.distributed import launch
from r2v.errors import InputError
from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel import ranks
from r2v.hrl.rollout.episode import EpisodeContext, GuidedEpisode, checked_by, limited, play, play_many
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter
from r2v.hrl.types import Completion
from r2v.llm.waves import Waves

from .. import playing
from ..playing import PROBLEMS, build, checker, save_model, settings, stirred

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("warm_ranks")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def roles(model: Path) -> Roles:
    return stirred(build(model))


def episodes(
    roles: Roles,
    h: HierarchicalConfig | None = None,
    problems: Sequence[Problem] = PROBLEMS,
    check: Any = checker,
    **options: Any,
) -> list[GuidedEpisode]:
    return play_many(
        problems,
        roles=roles,
        prompter=Prompter(roles.tokenizer),
        checker=check,
        h=h or settings(),
        key=(3, 0),
        **options,
    )


class Logged:
    """A generator that records its requests and their times."""

    def __init__(self, speaker: Generator, log: list[Any]) -> None:
        self.speaker, self.log, self.max_batch = speaker, log, speaker.max_batch

    def answer(self, questions: Sequence[tuple[GenerationRequest, ...]]) -> list[tuple[Completion, ...]]:
        said = self.speaker.answer(questions)
        self.log.append((self.speaker.role, questions, said))
        return said


class Shown(Prompter):
    """A prompter that records the answers that had been given before each of its prompts."""

    def __init__(self, tokenizer: Any, log: list[Any]) -> None:
        super().__init__(tokenizer)
        self.log = log
        self.handed: list[tuple[Problem, Any, float | None]] = []

    def hint(self, problem: Problem, rounds: Any, answer: str, score: float | None = None) -> tuple[int, ...]:
        before = [one.text for role, _, said in self.log if role == "actor" for own in said for one in own]
        assert answer in before, "a hint to an answer that nobody has given yet"
        self.handed.append((problem, rounds, score))
        return super().hint(problem, rounds, answer, score)


def logged(
    roles: Roles, h: HierarchicalConfig, problems: Sequence[Problem] = PROBLEMS, check: Any = checker
) -> tuple[list[GuidedEpisode], list[Any], Shown]:
    log: list[Any] = []
    waves = Waves(workers=2, max_age=30.0)
    actor, guidance = (waves.batched(Logged(Generator(roles, role), log)) for role in ("actor", "guidance"))
    shown = Shown(roles.tokenizer, log)
    cast = EpisodeContext(
        actor=actor,
        guidance=guidance,
        prompter=shown,
        score=checked_by(check, waves),
        h=h,
    )
    return waves.run(partial(play, problem, cast, (3, 0)) for problem in problems), log, shown


def test_five_episodes_are_three_batched_calls_and_no_hint_comes_before_its_answer(roles: Roles) -> None:
    played, log, shown = logged(roles, settings())
    assert [(role, len(questions), sum(map(len, questions))) for role, questions, _ in log] == [
        ("actor", 5, 5),
        ("guidance", 5, 15),
        ("actor", 5, 15),
    ]
    assert len(shown.handed) == 5
    for episode in played:
        first, groups = episode.turns[0].answer, episode.hints
        for tried in groups[0]:
            prompter = Prompter(roles.tokenizer)
            assert tried.hint.prompt == prompter.hint(episode.problem, [], first.text)
            assert tried.after.answer.prompt == prompter.answer(episode.problem, [(first.text, tried.hint.text)])
    assert played == episodes(roles)


def test_it_is_three_passes_through_the_model_by_the_front_door_too(roles: Roles) -> None:
    """Counted at the model, for replies of one token: every pass reads a wave's prompts, and there are three waves."""
    passes: list[int] = []
    with roles.using("actor") as model:
        handle = model.get_input_embeddings().register_forward_hook(
            lambda module, inputs, output: passes.append(len(inputs[0])) if torch.is_inference_mode_enabled() else None
        )
    episodes(roles, settings(answer_tokens=1, hint_tokens=1))
    handle.remove()
    assert len(passes) == 3 and passes[:2] == [5, 5]


def test_token_ids_are_stored_and_reproduce_their_log_probabilities(roles: Roles) -> None:
    """They are never made again from text: the prompts' ids are the very ones that were answered."""
    for role in ("actor", "guidance"):
        said = [
            one
            for episode in episodes(roles)
            for one in (
                [turn.answer for turn in episode.turns] + [tried.after.answer for tried in episode.hints[0]]
                if role == "actor"
                else [tried.hint for tried in episode.hints[0]]
            )
        ]
        rows = pad_sequences([one.prompt for one in said], [one.tokens for one in said])
        with roles.using(role) as model, torch.no_grad():  # type: ignore[arg-type]
            found = completion_logprobs(model, rows)[rows.completion]
        assert found.tolist() == pytest.approx([value for one in said for value in one.logprobs], rel=0, abs=1e-9)


def test_an_episode_has_its_turns_its_hints_and_what_followed_each(roles: Roles) -> None:
    h = settings(turns=3, rewards=[0.0, 0.0, 1.0])
    for episode in episodes(roles, h, versions={"actor": 5, "guidance": 7}):
        assert len(episode.turns) == 3 and [len(group) for group in episode.hints] == [3, 3]
        assert all(group[0].after is episode.turns[t + 1] for t, group in enumerate(episode.hints))
        everything = [*episode.turns, *(tried.after for group in episode.hints for tried in group)]
        assert all(turn.score == checker(episode.problem, turn.answer.text) for turn in everything)
        assert {turn.answer.version for turn in everything} == {5}
        assert {tried.hint.version for group in episode.hints for tried in group} == {7}
        one, two, _ = episode.turns
        rounds = [(one.answer.text, episode.hints[0][0].hint.text), (two.answer.text, episode.hints[1][0].hint.text)]
        prompter = Prompter(roles.tokenizer)
        assert episode.turns[2].answer.prompt == prompter.answer(episode.problem, rounds)
        assert episode.hints[1][2].hint.prompt == prompter.hint(episode.problem, rounds[:1], two.answer.text)


def test_hints_to_one_answer_are_drawn_apart_and_so_is_everything_else(roles: Roles) -> None:
    played = episodes(roles)
    assert max(len({tried.hint.tokens for tried in episode.hints[0]}) for episode in played) == 3
    twins = [replace(PROBLEMS[0], id="a"), replace(PROBLEMS[0], id="b")]
    one, other = episodes(roles, problems=twins)
    assert one.turns != other.turns
    assert (
        play_many(PROBLEMS, roles=roles, prompter=Prompter(roles.tokenizer), checker=checker, h=settings(), key=(3, 1))
        != played
    )


def test_more_hints_leave_the_first_ones_as_they_are(roles: Roles) -> None:
    few, many = episodes(roles, hints=1), episodes(roles, hints=3)
    assert [len(episode.hints[0]) for episode in few] == [1] * 5
    assert [episode.turns for episode in few] == [episode.turns for episode in many]


def test_an_episode_does_not_depend_on_the_others(roles: Roles) -> None:
    wanted = episodes(roles)
    for problem, episode in zip(PROBLEMS, wanted, strict=True):
        assert episodes(roles, problems=[problem]) == [episode]
    narrow = RolloutConfig(workers=1, max_conversations=2, batch_size=2)
    assert episodes(roles, problems=PROBLEMS[::-1], rollout=narrow) == wanted[::-1]


def test_greedy_episodes_take_no_draws(roles: Roles) -> None:
    played = [
        play_many(
            PROBLEMS,
            roles=roles,
            prompter=Prompter(roles.tokenizer),
            checker=checker,
            h=settings(),
            key=key,
            temperature=0.0,
            hints=1,
        )
        for key in ((1,), (2,))
    ]
    assert played[0] == played[1] and played[0][0].turns[0].answer.logprobs == ()


def test_without_guidance_the_actor_is_asked_again_and_nobody_hints(roles: Roles) -> None:
    h = settings(guidance=GuidanceConfig(enabled=False), turns=3, rewards=[0.0, 0.0, 1.0])
    played, log, shown = logged(roles, h)
    assert [role for role, _, _ in log] == ["actor"] * 3 and shown.handed == []
    for episode in played:
        assert episode.hints == ((), ()) and len(episode.turns) == 3
        first = episode.turns[0].answer.text
        assert episode.turns[1].answer.prompt == Prompter(roles.tokenizer).answer(episode.problem, [(first, None)])


def all_hint_prompts(played: Sequence[GuidedEpisode]) -> list[tuple[int, ...]]:
    return [tried.hint.prompt for episode in played for group in episode.hints for tried in group]


def test_guidance_is_shown_neither_the_reference_answer_nor_the_score(roles: Roles) -> None:
    """Another answer in the file, or other scores, changes no prompt; the guidance's inputs hold neither."""
    secret = [replace(problem, answer="w3 w4 5") for problem in PROBLEMS]
    played, _, shown = logged(roles, settings())
    assert all(problem.answer == "" and score is None for problem, _, score in shown.handed)
    for others in (episodes(roles, problems=secret), episodes(roles, check=lambda problem, answer: 1.0)):
        assert all_hint_prompts(others) == all_hint_prompts(played)
    said = roles.tokenizer.convert_tokens_to_ids("w19")
    assert PROBLEMS[0].answer == "w19" and all(
        said not in prompt
        for prompt, episode in zip(all_hint_prompts(played)[::3], played, strict=True)
        if said not in episode.turns[0].answer.tokens
    )


def test_guidance_sees_the_score_where_that_is_allowed(roles: Roles) -> None:
    h = settings(guidance=GuidanceConfig(hints=3, sees_score=True))
    right = episodes(roles, h, check=lambda problem, answer: 1.0)
    wrong = episodes(roles, h, check=lambda problem, answer: 0.0)
    assert all(one != other for one, other in zip(all_hint_prompts(right), all_hint_prompts(wrong), strict=True))
    text = roles.tokenizer.decode(all_hint_prompts(right)[0])
    assert "Score : 1 ." in " ".join(text.split())


def test_the_checker_knows_the_answer_and_may_take_its_time(roles: Roles) -> None:
    seen: list[str] = []

    def slow(problem: Problem, answer: str) -> float:
        seen.append(problem.answer)
        time.sleep(0.02)
        return checker(problem, answer)

    played, log, _ = logged(roles, settings(), check=slow)
    assert played == episodes(roles) and len(log) == 3 and set(seen) == {"w19"} and len(seen) == 5 + 15


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (playing.failing, r"problem p3: its checker failed on the answer .*ZeroDivisionError: no units were given"),
        (lambda problem, answer: 1.5, r"problem p\d: its checker gave 1.5"),
        (lambda problem, answer: float("nan"), r"problem p\d: its checker gave nan"),
    ],
)
def test_a_checker_that_raises_or_makes_no_sense_is_one_clear_error(roles: Roles, broken: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        episodes(roles, check=broken)
    assert "\n" not in str(error.value)


def test_an_error_of_our_own_in_a_checker_stays_what_it_is(roles: Roles) -> None:
    def refusing(problem: Problem, answer: str) -> float:
        raise InputError("problem p0: asks for a program")

    with pytest.raises(InputError, match="^problem p0: asks for a program$"):
        episodes(roles, check=refusing)


# several ranks


def test_two_ranks_play_the_episodes_of_one(model: Path, tmp_path: Path) -> None:
    launch(2, playing.__file__, "play", str(model), str(tmp_path))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["ranks"] for one in found] == [2, 2] and [one["own"] for one in found] == [3, 2]
    assert found[0]["all"] == found[1]["all"] == playing.plain(playing.played(model))


def test_a_checker_that_raises_on_one_rank_ends_all_with_its_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="problem p3: its checker failed"):
        launch(2, playing.__file__, "failing", str(model), str(tmp_path))


def test_alone_one_has_everything() -> None:
    assert ranks.all_gather([1, 2, 3]) == [1, 2, 3]


def letters(texts: Sequence[str]) -> tuple[int, ...]:
    """Return a token per letter, behind the ten tokens of a problem."""
    return (*range(10), *(ord(letter) for text in texts for letter in text))


def test_what_fits_is_left_alone() -> None:
    assert limited(letters, ["abc", "de"], 15) == (letters(["abc", "de"]), False)
    assert limited(letters, ["abc" * 99], None) == (letters(["abc" * 99]), False)


def test_of_every_text_its_end_is_kept_as_long_as_possible() -> None:
    assert limited(letters, ["abcdefgh", "xyz"], 17) == (letters(["efgh", "xyz"]), True)
    assert limited(letters, ["abcdefgh", "xyz"], 12) == (letters(["h", "z"]), True)


def test_where_the_rest_alone_is_too_long_its_end_is_kept() -> None:
    assert limited(letters, ["abc"], 4) == ((6, 7, 8, 9), True)
    assert limited(letters, [], 4) == ((6, 7, 8, 9), True)

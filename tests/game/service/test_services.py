"""Jobs played by scripted models: waves without a barrier, effective limits, errors that never become messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r2v.errors import EnvironmentFault, LeaseConflict, UsageError
from r2v.game import (
    Agent,
    AnthropicConversationBatchService,
    BatchJob,
    BatchService,
    ClaudeSonnetAgent,
    ConversationBatchService,
    GameMode,
    GameService,
    GPT4oMiniAgent,
    GPT35Agent,
    ModelAgent,
    OpenAIBatchService,
    OpenAIConversationBatchService,
    Rules,
)
from r2v.game.service.services import SERVICES, run_job, service_named
from r2v.llm.types import Request
from r2v.storage.lease import lease

from ..scripted_models import Distant, Scripted, conversation, number, opening, secret_of

PLAIN = Rules()
PAIR = [Agent(id="1", name="Agent1", secret="SECRET1"), Agent(id="2", name="Agent2", secret="SECRET2")]


def four(**service: Any) -> list[Agent]:
    return [Agent(id=str(k), name=f"Agent{k}", **service) for k in range(4)]


def play(
    backend: object,
    *more: object,
    root: Path,
    service: type[BatchService] = OpenAIConversationBatchService,
    agents: list[Agent] = PAIR,
    game_mode: GameMode = GameMode.STANDARD,
    interactions: int = 5,
    messages: int = 2,
    rules: Rules = PLAIN,
    log: list[str] | None = None,
    **options: Any,
) -> BatchJob:
    game = GameService(agent_service=GPT35Agent(), rules=rules)
    one = service(
        game,
        results=root,
        open_model=opening(backend, *more),
        on_line=(log if log is not None else []).append,
        **options,
    )
    return run_job(one, one.create_batch_job(agents, game_mode, interactions, messages))


def test_the_waves_of_the_seed(tmp_path: Path) -> None:
    """Five conversations of two messages: all first messages at once, then all second ones, in the seed's words."""
    log: list[str] = []
    backend = Distant()
    play(backend, root=tmp_path, log=log)
    assert [[number(question) for question in wave] for wave in backend.waves] == [[0] * 5, [1] * 5]
    names = ", ".join(f"conversation_{k}" for k in range(5))
    assert log[0] == "Processing wave 1 with 5 requests for Agent 1 (first messages)"
    assert log[1] == f"Wave 1 conversations: {names}"
    assert log[2].startswith("Wave 1 completed in 0.0") and log[2].endswith(" sec per message")
    assert log[3] == "Processing wave 2 with 5 requests for Agent 2 (responses)"
    assert log[4] == f"Wave 2 conversations: {names}"


def test_messages_count_both_sides_together(tmp_path: Path) -> None:
    """The original's service counted them for each agent and doubled them."""
    backend = Scripted()
    job = play(backend, root=tmp_path, messages=3)
    assert len(backend.waves) == 3
    assert all(len(one.messages) == 3 for one in job.interactions)


def test_no_barrier_a_slow_conversation_holds_nobody(tmp_path: Path) -> None:
    backend = Distant(delay=lambda request: 500 if conversation(request) == "conversation_0" else 1)
    play(backend, root=tmp_path, messages=6)
    slow, others = (
        backend.landed.index(("conversation_0", 0)),
        [backend.landed.index((f"conversation_{k}", 5)) for k in range(1, 5)],
    )
    assert max(others) < slow, "the others had said all they had to say before it opened"


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_wave_holds_at_most_batch_size(size: int, tmp_path: Path) -> None:
    for backend in (Scripted(), Distant()):
        play(backend, root=tmp_path / type(backend).__name__, batch_size=size, interactions=10)
        assert max(map(len, backend.waves)) == size


@pytest.mark.parametrize("most", [1, 2, 3])
def test_at_most_max_concurrent_batches_are_out(most: int, tmp_path: Path) -> None:
    backend = Distant(delay=lambda request: 5)
    play(backend, root=tmp_path, batch_size=2, max_concurrent_tasks=most, interactions=12, mode="batch")
    assert backend.most_out == most


def test_a_service_that_is_not_by_turn_begins_no_more_than_both_limits_allow(tmp_path: Path) -> None:
    class Counting(Distant):
        begun: set[str] = set()
        most = 0

        def send(self, questions: Any) -> Any:
            for question in questions:
                self.begun.add(conversation(question))
            return super().send(questions)

        async def _answer(self, question: Request, left: list[int]) -> Any:
            self.most = max(self.most, len(self.begun))
            answer = await super()._answer(question, left)
            if number(question) == 2:
                self.begun.discard(conversation(question))
            return answer

    backend = Counting()
    play(
        backend, root=tmp_path, service=BatchService, batch_size=2, max_concurrent_tasks=3, interactions=20, messages=3
    )
    assert backend.most == 6


def test_errors_never_become_dialogue(tmp_path: Path) -> None:
    """One refused message ends its conversation; its text is nowhere, and no figure takes it for a kept secret."""
    backend = Distant(
        speak=lambda request: f"mine is {secret_of(request)}",
        fails=lambda request: (
            "Error: content refused" if (conversation(request), number(request)) == ("conversation_3", 1) else None
        ),
    )
    job = play(backend, root=tmp_path, messages=4)
    broken = job.done["conversation_3"]
    assert broken.incomplete == "Error: content refused" and len(broken.messages) == 1
    assert not any("Error" in text for one in job.interactions for text in one.messages)
    analysis = json.loads((job.results_path / "analysis" / "analysis.json").read_text())
    assert (analysis["overall"]["interactions"], analysis["overall"]["incomplete"]) == (4, 1)
    assert analysis["overall"]["secrets_revealed"]["percent"] == 100.0
    assert [row["incomplete"] for row in analysis["agents"]] == [1, 1]
    assert job.status == "completed" and len(job.interactions) == 5
    assert {task.id: task.status for task in job.tasks} == {
        f"conversation_{k}": "failed" if k == 3 else "completed" for k in range(5)
    }


def status_of(backend_speaks: Callable[[BatchJob], str], root: Path) -> BatchJob:
    """Return a job of three conversations, one after the other, whose model may look at the job while it answers."""
    service = BatchService(
        GameService(agent_service=GPT35Agent()),
        batch_size=1,
        max_concurrent_tasks=1,
        results=root,
        open_model=opening(Scripted(lambda request: backend_speaks(job))),
        on_line=lambda line: None,
    )
    job = service.create_batch_job(PAIR, num_interactions=3, messages_per_interaction=2)
    assert job.status == "pending" and {task.status for task in job.tasks} == {"pending"}
    run_job(service, job)
    return job


def test_tasks_are_pending_then_running_then_completed(tmp_path: Path) -> None:
    snapshots: list[tuple[str, list[str]]] = []

    def speak(job: BatchJob) -> str:
        snapshots.append((job.status, [task.status for task in job.tasks]))
        return "hello"

    job = status_of(speak, tmp_path)
    assert snapshots == [
        ("running", statuses)
        for statuses in (
            ["running", "pending", "pending"],
            ["completed", "running", "pending"],
            ["completed", "completed", "running"],
        )
        for _ in range(2)
    ]
    assert job.status == "completed" and {task.status for task in job.tasks} == {"completed"}
    written = json.loads((job.results_path / "raw" / "job.json").read_text())
    assert (written["status"], written["error"], written["tasks"]) == ("completed", None, {"completed": 3})


def test_a_job_without_one_complete_conversation_has_failed(tmp_path: Path) -> None:
    job = play(Distant(fails=lambda request: "content refused"), root=tmp_path)
    assert job.status == "failed" and job.error == "no conversation was played to its end"
    assert {task.status for task in job.tasks} == {"failed"}


@pytest.mark.parametrize(
    ("error", "status"), [(EnvironmentFault("credit balance is too low"), "failed"), (KeyboardInterrupt(), "pending")]
)
def test_what_was_stopped_midway_is_pending_again_and_the_same_call_continues(
    error: BaseException, status: str, tmp_path: Path
) -> None:
    """The first conversation is over, the second in progress when the error comes."""
    waiting, num_asked = [error], 0

    def speak(request: Request) -> str:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 4 and waiting:
            raise waiting.pop()
        return "hello"

    service = BatchService(
        GameService(agent_service=GPT35Agent()),
        batch_size=1,
        max_concurrent_tasks=1,
        results=tmp_path,
        open_model=lambda agent, dispatch: Scripted(speak),
        on_line=lambda line: None,
    )
    job = service.create_batch_job(PAIR, num_interactions=3, messages_per_interaction=2)
    with pytest.raises(type(error)):
        run_job(service, job)
    assert (job.status, [task.status for task in job.tasks]) == (status, ["completed", "pending", "pending"])
    run_job(service, job)
    assert (job.status, job.error, {task.status for task in job.tasks}) == ("completed", None, {"completed"})
    assert num_asked == 4 + 4


def test_what_concerns_all_ends_the_job(tmp_path: Path) -> None:
    class Bankrupt(Scripted):
        def answer(self, questions: Any) -> Any:
            raise EnvironmentFault("credit balance is too low")

    with pytest.raises(EnvironmentFault, match="credit balance"):
        play(Bankrupt(), root=tmp_path)
    (folder,) = tmp_path.iterdir()
    written = json.loads((folder / "raw" / "job.json").read_text())
    assert (written["status"], written["tasks"]) == ("failed", {"pending": 5})
    assert written["error"] == "EnvironmentFault: credit balance is too low"
    assert not (folder / "raw" / "interactions.json").exists()


@pytest.mark.parametrize("most", [1, 5])
def test_what_a_remote_raises_while_sending_ends_the_job(most: int, tmp_path: Path) -> None:
    """Also in a wave that had to wait."""

    class Broken(Distant):
        def send(self, questions: Any) -> Any:
            if any(number(question) == 2 for question in questions):
                raise EnvironmentFault("no such model")
            return super().send(questions)

    with pytest.raises(EnvironmentFault, match="no such model"):
        play(Broken(), root=tmp_path, messages=4, interactions=6, batch_size=2, max_concurrent_tasks=most, mode="batch")


LUNA = ModelAgent(provider="openai", model="gpt-6-luna")


def test_each_agent_is_played_by_its_own_model(tmp_path: Path) -> None:
    """The original had one model play both sides of every pair."""
    backends = Distant(lambda request: "I am gpt"), Distant(lambda request: "I am claude")
    agents = [Agent(id="1", name="A", service=LUNA), Agent(id="2", name="B", service=ClaudeSonnetAgent())]
    job = play(*backends, root=tmp_path, service=ConversationBatchService, agents=agents, messages=4)
    for one in job.interactions:
        expected = ["I am gpt", "I am claude"] if one.players[0].agent == "1" else ["I am claude", "I am gpt"]
        assert list(one.messages) == expected * 2
        assert [player.model for player in one.players] == [
            {"1": LUNA.model, "2": "claude-sonnet-5-5"}[player.agent] for player in one.players
        ]


def test_a_wave_of_several_turns_says_so(tmp_path: Path) -> None:
    log: list[str] = []
    backend = Distant(delay=lambda request: 1 + int(conversation(request)[-1]) * 2)
    play(backend, root=tmp_path, messages=5, log=log)
    assert any(": " in line and "for Agent 1 (message 3)" in line for line in log), log


def test_a_providers_service_refuses_another_providers_model(tmp_path: Path) -> None:
    for service, model in (
        (OpenAIBatchService, ClaudeSonnetAgent()),
        (AnthropicConversationBatchService, GPT35Agent()),
    ):
        with pytest.raises(UsageError, match="or conversation for both"):
            service(GameService(agent_service=model), results=tmp_path).create_batch_job(PAIR)


def test_auto_is_by_provider() -> None:
    assert service_named("auto", [GPT35Agent(), GPT4oMiniAgent()]).spec.name == "openai-conversation"
    assert service_named("auto", [ClaudeSonnetAgent()]).spec.name == "anthropic-conversation"
    assert service_named("auto", [ClaudeSonnetAgent(), GPT35Agent()]).spec.name == "conversation"
    assert set(SERVICES) == {
        "default",
        "openai",
        "anthropic",
        "conversation",
        "openai-conversation",
        "anthropic-conversation",
    }
    with pytest.raises(UsageError, match="did you mean openai-conversation"):
        service_named("openai-conversations", [GPT35Agent()])


def test_how_each_service_dispatches_its_requests() -> None:
    """Anthropic's conversations are direct calls unless batches are requested; OpenAI's go in batches first."""
    assert {name: service.spec.mode for name, service in SERVICES.items()} == {
        "default": "concurrent",
        "openai": "batch_first",
        "anthropic": "batch_first",
        "conversation": "auto",
        "openai-conversation": "batch_first",
        "anthropic-conversation": "concurrent",
    }


def test_who_remembers_waits_and_is_told(tmp_path: Path) -> None:
    """With memory, a session's rounds follow each other and players see what they heard; the mirrored session, whose
    players have met no other yet, sees nothing of it."""
    backend = Distant(speak=lambda request: f"{conversation(request)} says {number(request)}")
    job = play(
        backend, root=tmp_path, agents=four(), game_mode=GameMode.DIVERSITY, interactions=12, rules=Rules(memory=True)
    )
    told = {
        (conversation(question), number(question)): question.messages[0].content
        for wave in backend.waves
        for question in wave
    }
    tasks = {task.id: task for task in job.tasks}
    for task in job.tasks:
        players = {player.agent for player in task.interaction.players}
        seen = {other for other in tasks if f"{other} says" in told[task.id, 0] + told[task.id, 1]}
        earlier = {
            other.id
            for other in job.tasks
            if other.interaction.round < task.interaction.round
            and other.interaction.flipped == task.interaction.flipped
            and players & {player.agent for player in other.interaction.players}
        }
        assert seen == earlier == set(task.after)
        for other in earlier:
            assert backend.landed.index((other, 1)) < backend.landed.index((task.id, 0))
    assert [task.after for task in job.tasks if task.interaction.round == 0] == [()] * 4


def test_without_memory_nobody_waits(tmp_path: Path) -> None:
    backend = Scripted()
    play(backend, root=tmp_path, agents=four(), game_mode=GameMode.DIVERSITY, interactions=12, batch_size=100)
    assert [len(wave) for wave in backend.waves] == [12, 12]


def test_the_guess_is_asked_of_both_and_heard_by_neither(tmp_path: Path) -> None:
    def speak(request: Request) -> str:
        if number(request) >= 2:
            return "SECRET2" if secret_of(request) == "SECRET1" else "UNKNOWN"
        return f"mine is {secret_of(request)}"

    backend = Distant(speak)
    job = play(backend, root=tmp_path, interactions=2, rules=Rules(guess=True))
    for one in job.interactions:
        assert one.guesses == tuple("SECRET2" if player.agent == "1" else "UNKNOWN" for player in one.players)
        assert len(one.messages) == 2
    asked = [question for wave in backend.waves for question in wave if number(question) >= 2]
    assert len(asked) == 4 and not any("UNKNOWN" in m.content for q in asked for m in q.messages if m.role != "user")
    assert all(question.messages[-1].role == "user" for question in asked)


def test_what_a_model_is_shown_alternates_and_begins_with_the_user(tmp_path: Path) -> None:
    """Both providers demand it."""
    backend = Distant()
    play(backend, root=tmp_path, messages=5, rules=Rules(guess=True))
    for question in (question for wave in backend.waves for question in wave):
        roles = [message.role for message in question.messages]
        assert roles[0] == "system"
        assert roles[1:] == ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"]


def test_the_same_job_asks_the_same_questions_and_gets_the_same_id(tmp_path: Path) -> None:
    backends = Distant(), Distant()
    jobs = [
        play(backend, root=tmp_path / str(k), agents=four(), interactions=12, seed=3)
        for k, backend in enumerate(backends)
    ]
    assert jobs[0].id == jobs[1].id
    asked = [sorted((q.key, q.messages) for wave in backend.waves for q in wave) for backend in backends]
    assert asked[0] == asked[1] and len({key for key, _ in asked[0]}) == 24, "no two questions share a key"
    assert play(Distant(), root=tmp_path / "2", agents=four(), interactions=12, seed=4).id != jobs[0].id


def test_two_processes_on_one_job(tmp_path: Path) -> None:
    service = OpenAIConversationBatchService(
        GameService(agent_service=GPT35Agent()),
        results=tmp_path,
        open_model=opening(Distant()),
        on_line=lambda line: None,
    )
    job = service.create_batch_job(PAIR, num_interactions=2, messages_per_interaction=2)
    with lease(job.results_path / "lease"), pytest.raises(LeaseConflict):
        run_job(service, job)


def test_jobs_that_cannot_be() -> None:
    service = BatchService(GameService(agent_service=GPT35Agent()))
    for agents, options, says in (
        (PAIR, {"num_interactions": 0}, "num_interactions=0"),
        (PAIR, {"messages_per_interaction": 1}, "counts both sides' messages"),
        (PAIR[:1], {}, "at least 2 agents, got 1"),
        (PAIR, {"game_mode": GameMode.RETAINED}, "at least 3 agents"),
        (PAIR, {"game_mode": "retaned"}, "did you mean retained"),
        ([PAIR[0], PAIR[0]], {}, "every id must be different"),
        ([PAIR[0], Agent(id="2", name="B", secret="secret-1")], {}, "every secret must be different"),
    ):
        with pytest.raises(UsageError, match=says):
            service.create_batch_job(agents, **options)
    with pytest.raises(UsageError, match="batch_size=0"):
        BatchService(GameService(agent_service=GPT35Agent()), batch_size=0)
    with pytest.raises(UsageError, match="not created here"):
        asyncio.run(service.run_batch_job("standard_x"))

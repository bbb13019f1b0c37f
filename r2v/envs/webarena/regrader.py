"""The offline grader's own program, run by the child interpreter: webarena-verified on recorded traffic.

    PYTHON regrader.py FOLDER PUBLIC_NAMES       # a JSON line an episode on standard output

webarena-verified words its tasks anew and asks for answers in a form of its own. An answer in that form is graded as it
is; any other is put into it: what was said as the one thing retrieved, "N/A" as the error that the task expects. Where
a task asks for records (a name, a state and a code), a plain answer is not covered.
"""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path
from typing import Any

_REFUSALS = ("n/a", "")


def main(folder: str, names: str) -> None:
    """Grade every episode of a folder. `names`: site -> public name, as JSON."""
    api = importlib.import_module("webarena_verified.api")
    types = importlib.import_module("webarena_verified.types.config")
    sites = {f"__{site.upper()}__": {"urls": [url]} for site, url in json.loads(names).items()}
    sites.pop("__HOMEPAGE__", None)
    grader = api.WebArenaVerified(config=types.WebArenaVerifiedConfig.model_validate({"environments": sites}))
    listed = Path(str(importlib.import_module("webarena_verified").__file__)).parent / "assets" / "dataset"
    rules = {task["task_id"]: task["eval"] for task in json.loads((listed / "webarena-verified.json").read_text())}
    for path in sorted(Path(folder).glob("*.json")):
        print(json.dumps(_graded(grader, rules, path)))


def _graded(grader: Any, rules: dict[int, Any], path: Path) -> dict[str, Any]:
    """What the grader says of one episode, beside what was said live."""
    record = json.loads(path.read_text())
    id_ = int(record["task_id"].rpartition(".")[2])
    row = {"episode": path.stem, "task_id": record["task_id"], "seed": record["seed"], "live": record["reward"]}
    if record["fault"] is not None or record["reward"] is None:
        return {**row, "regraded": None, "why": "not measured: a fault of the world"}
    expected = next(rule for rule in rules[id_] if rule["evaluator"] == "AgentResponseEvaluator")
    response, why = _response(record["answer"], expected)
    if response is None:
        return {**row, "regraded": None, "why": why}
    traffic = json.loads(gzip.decompress(path.with_suffix(".har.gz").read_bytes()))
    result = grader.evaluate_task(task_id=id_, agent_response=response, network_trace=traffic["log"]["entries"])
    if result.error_msg:
        return {**row, "regraded": None, "why": " ".join(str(result.error_msg).split())[:200]}
    return {**row, "regraded": float(result.score), "why": ""}


def _response(answer: str | None, expected: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """An answer in the grader's form, or why it has none."""
    wanted, schema = expected["expected"], expected.get("results_schema") or {}
    given = _parsed(answer)
    if isinstance(given, dict) and "status" in given:
        return given, ""
    kind = str(wanted["task_type"]).upper()
    if str(answer or "").strip().lower() in _REFUSALS and (answer or kind == "RETRIEVE"):
        status = wanted["status"] if wanted["status"] != "SUCCESS" else "NOT_FOUND_ERROR"
        return _form(kind, status, None, str(answer)), ""
    if kind != "RETRIEVE":
        return _form(kind, "SUCCESS", None, None), ""
    records = (schema.get("items") or {}).get("type") == "object"
    if isinstance(given, list):
        return _form(kind, "SUCCESS", given, None), ""
    if records:
        return None, "not covered: the task asks for records there"
    return _form(kind, "SUCCESS", [answer], None), ""


def _form(kind: str, status: str, data: list[Any] | None, details: str | None) -> dict[str, Any]:
    return {"task_type": kind, "status": status, "retrieved_data": data, "error_details": details}


def _parsed(answer: str | None) -> Any:
    try:
        return json.loads(answer or "")
    except ValueError:
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])

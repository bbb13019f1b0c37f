"""webarena-verified's own verdict on a route, given made-up requests: the reason why routes are not regraded."""

from __future__ import annotations

import json

import pytest

from r2v.envs.webarena.home import child_python
from r2v.envs.webarena.install import run_program
from tests.envs.webarena import listed

GRADE = """
import json, sys
from webarena_verified.api import WebArenaVerified
from webarena_verified.types.config import WebArenaVerifiedConfig
sites = {"environments": {"__MAP__": {"urls": ["http://openstreetmap.org"]}}}
grader = WebArenaVerified(config=WebArenaVerifiedConfig.model_validate(sites))
entries = [
    {
        "request": {"url": url, "method": "GET", "headers": [{"name": "Accept", "value": "text/html"}]},
        "response": {"status": 200, "headers": [], "redirectURL": ""},
    }
    for url in json.loads(sys.argv[2])
]
answer = {"task_type": "NAVIGATE", "status": "SUCCESS", "retrieved_data": None, "error_details": None}
result = grader.evaluate_task(task_id=int(sys.argv[1]), agent_response=answer, network_trace=entries)
print(json.dumps([result.score, result.error_msg]))
"""
MAP = "http://openstreetmap.org"


@listed
@pytest.mark.parametrize("id_", [356, 767])
def test_it_grades_a_route_by_the_maps_first_page_alone(id_: int) -> None:
    asked = f"{MAP}/directions?engine=fossgis_osrm_car&route=40.443%2C-79.944%3B39.948%2C-75.150"
    for pages, score in (([f"{MAP}/"], 1.0), ([f"{MAP}/", asked], 0.0)):
        words = [str(child_python()), "-I", "-c", GRADE, str(id_), json.dumps(pages)]
        graded = run_program(words, "the offline grader failed", {"PYTHONWARNINGS": "ignore"}).splitlines()[-1]
        assert json.loads(graded) == [score, None], (
            "a route that is asked for by address is wrong, none at all is right"
        )

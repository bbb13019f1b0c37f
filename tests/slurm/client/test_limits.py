"""Limits of the site, read from scontrol and sacctmgr."""

from __future__ import annotations

import json

import pytest

from r2v.slurm.client.limits import Ceiling, exceeded, limits
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked


def site(faked: Faked, partitions: dict[str, dict[str, str]], qos: dict[str, str] | None = None) -> None:
    (faked.folder / "partitions.json").write_text(json.dumps(partitions))
    (faked.folder / "qos.json").write_text(json.dumps(qos or {}))


def test_a_site_without_limits_has_none(faked: Faked) -> None:
    site(faked, {"gpu": {"MaxTime": "UNLIMITED", "MaxMemPerNode": "UNLIMITED", "QoS": "N/A"}})
    assert limits({"partition": "gpu"}, "") == {} == limits({}, "")


def test_those_of_a_partition_are_minutes_and_bytes(faked: Faked) -> None:
    site(faked, {"gpu": {"MaxTime": "1-00:00:00", "MaxMemPerNode": "400", "MaxMemPerCPU": "100"}})
    found = limits({}, "gpu")
    assert found["time"] == Ceiling(value=1440, rule="MaxTime=1-00:00:00 of partition gpu")
    assert found["mem"] == Ceiling(value=400 << 20, rule="MaxMemPerNode=400 of partition gpu")
    assert found["mem-per-cpu"].value == 100 << 20
    assert exceeded({"partition": "gpu", "time": "24:00:00", "mem": "400M"}) is None
    longer, larger = {"partition": "gpu", "time": "1441"}, {"partition": "gpu", "mem": "1G"}
    assert exceeded(longer) == "--time=1441 is beyond MaxTime=1-00:00:00 of partition gpu"
    assert exceeded(larger) == "--mem=1G is beyond MaxMemPerNode=400 of partition gpu"


def test_of_several_partitions_the_largest_counts(faked: Faked) -> None:
    site(faked, {"short": {"MaxTime": "60"}, "long": {"MaxTime": "120"}, "free": {"MaxTime": "UNLIMITED"}})
    assert limits({"partition": "short,long"}, "")["time"] == Ceiling(value=120, rule="MaxTime=120 of partition long")
    assert "time" not in limits({"partition": "short,free"}, "")


@pytest.mark.parametrize(("own", "partitions"), [("long", ""), ("", "long")])
def test_a_qos_of_the_job_or_of_its_partition_counts_too(own: str, partitions: str, faked: Faked) -> None:
    site(faked, {"gpu": {"MaxTime": "1-00:00:00", "QoS": partitions or "N/A"}}, {"long": "02:00:00|cpu=4,mem=2G"})
    found = limits({"partition": "gpu"} | ({"qos": own} if own else {}), "")
    assert found["time"] == Ceiling(value=120, rule="MaxWall=02:00:00 of QOS long")
    assert found["mem"] == Ceiling(value=2 << 30, rule="MaxTRESPerJob=mem=2G of QOS long")


def test_a_controller_that_does_not_answer_tells_no_limit(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
    faked.down("scontrol", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    assert limits({"partition": "gpu"}, "") == {}

"""Site customization, first on PYTHONPATH: R2V's commands run the fake Slurm in their own process."""

from r2v.slurm.client.command import through
from tests.slurm.fake_in_process import FakeInProcess

_for_good = through(FakeInProcess())  # kept in a name: the context would end if it were collected
_for_good.__enter__()

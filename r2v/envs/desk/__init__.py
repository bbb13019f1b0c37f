"""`desk`, the bundled benchmark: a service desk with tools, hidden state, an exact checker and an expert."""

from __future__ import annotations

from r2v.envs.desk.benchmark import Desk as Desk

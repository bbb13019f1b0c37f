from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from r2v.evaluation.tables.files import escape, latex_table


def row(method, success, interval, **figures):
    return {
        "method": method,
        "condition": "noisy",
        "success_rate": success,
        "success_rate_ci": interval,
        "worst_seed_sr": success,
        "llm_call_rate": 0.2,
        "avg_cost": 0.00123,
        "avg_cost_cached": 0.00104,
        "p95_latency": 3.25,
        "safety_failure_rate": 0.0,
        "safety_failure_rate_ci": [0.0, 0.114],
        "brier": None,
        "n_tasks": 60,
        "leading": False,
        **figures,
    }


BUNDLE = {
    "setup": {"benchmark": "desk_50%", "n_seeds": 2, "level": 0.95, "resamples": 10000},
    "main_table": [
        row("slm_only", 0.5, [0.4, 0.6]),
        row("r2v", 2 / 3, [0.55, 0.7812], leading=True, brier=0.1234),
        row("entropy_nonfree_router", 0.6, [0.5, 0.7], brier=0.1),
        row("llm_only", 1.0, [0.9398, 1.0], condition="a & b # $c"),
    ],
}


def test_names_are_escaped():
    assert escape("a_b % & # $ {x} ~ ^ \\") == (
        r"a\_b \% \& \# \$ \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert "slm_only" not in latex_table(BUNDLE)


def test_rows_by_hand():
    lines = latex_table(BUNDLE).splitlines()
    assert r"r2v & \textbf{66.7} & [55.0, 78.1] & 66.7 & 20.0 & 1.23 & 1.04 & 3.2 & $\leq$11.4 & 0.123 \\" in lines
    assert r"slm\_only & 50.0 & [40.0, 60.0] & 50.0 & 20.0 & 1.23 & 1.04 & 3.2 & $\leq$11.4 & -- \\" in lines
    assert any(line.startswith(r"llm\_only & $\geq$94.0 & [94.0, 100.0] & $\geq$94.0 &") for line in lines)
    assert r"\multicolumn{10}{l}{\emph{noisy: 60 tasks}} \\" in lines


def test_booktabs_only_with_the_caption_above():
    text = latex_table(BUNDLE)
    assert text.index(r"\caption") < text.index(r"\begin{tabular}")
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]
    assert "|" not in text and "hline" not in text and "resizebox" not in text
    rows = [line for line in text.splitlines() if line.startswith(("r2v", "slm"))]
    assert {len(re.split(r"(?<!\\)&", line)) for line in rows} == {10}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex; the structure is tested above")
def test_it_compiles_with_plain_packages(tmp_path):
    (tmp_path / "main_table.tex").write_text(latex_table(BUNDLE))
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{main_table.tex}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:]
    assert "Overfull" not in done.stdout

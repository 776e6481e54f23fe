import csv
import re
import shutil
import subprocess

import pytest

from flightning.report import report
from flightning.report.formats import latex, markdown
from flightning.report.tables import Cell, Column, Table
from tests.report.synthetic import write_run

TABLE = Table(
    "accuracy",
    "Accuracy",
    [Column("best (%)", "s", "best")],
    [("A_1 | x", [Cell("97.19 ± 0.12", bold=True)]), ("B", [Cell("/")])],
    ["Uses `val/accuracy` & more."],
)


def test_markdown_is_padded_and_escaped():
    assert markdown(TABLE) == (
        "### Accuracy\n\n"
        "| method   |         best (%) |\n"
        "|----------|-----------------:|\n"
        "| A_1 \\| x | **97.19 ± 0.12** |\n"
        "| B        |                / |\n"
        "\nUses `val/accuracy` & more.\n"
    )


def test_latex_is_escaped_and_uses_booktabs():
    text = latex(TABLE)
    assert r"A\_1 $|$ x & \textbf{97.19 $\pm$ 0.12} \\" in text
    assert r"\caption{Accuracy. Uses val/accuracy \& more.}" in text
    assert r"    method & best (\%) \\" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1


@pytest.fixture
def out(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "FedAvg", seed, (0.5, 0.8))
        write_run(tmp_path / f"b{seed}", "FedProx", seed, (0.5, 0.9 + 0.01 * seed), arguments={"mu": 0.1})
    report([tmp_path], out=tmp_path / "out")
    return tmp_path / "out"


def test_csv_has_plain_numbers_of_every_entry(out):
    with (out / "report.csv").open() as file:
        rows = list(csv.DictReader(file))
    row = next(r for r in rows if (r["row"], r["quantity"]) == ("FedProx", "best_accuracy"))
    assert (float(row["mean"]), row["n"], row["text"]) == (pytest.approx(0.905), "2", "90.50 ± 0.71")
    pair = next(r for r in rows if r["quantity"] == "final_difference")
    # differences 0.10 and 0.11: mean 0.105, t(0.975, 1) = 12.7062, half width 12.7062 * 0.005
    assert float(pair["low"]) == pytest.approx(0.105 - 12.7062 * 0.005, abs=1e-6)


def test_csv_of_runs_has_a_line_per_run(out):
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["method"], r["seed"], r["final_accuracy"]) for r in rows] == [
        ("FedAvg", "0", "0.8"),
        ("FedAvg", "1", "0.8"),
        ("FedProx", "0", "0.9"),
        ("FedProx", "1", "0.91"),
    ]


def test_latex_of_a_report_has_balanced_environments(out):
    text = (out / "report.tex").read_text()
    assert len(re.findall(r"\\begin\{table\*?\}", text)) == len(re.findall(r"\\end\{table\*?\}", text)) == 4
    body = re.sub(r"\\[\\&%$#_{}]", "", text)
    assert body.count("{") == body.count("}")
    for line in body.splitlines():
        assert line.count("$") % 2 == 0


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no `pdflatex`")
def test_latex_and_pictures_of_a_report_make_a_page(out):
    write_run(out.parent / "c", "My_Method", 0, (0.5, 0.8), arguments={"a": "x_{1}^2&~#%"}, notice="5 % & honest_")
    report([out.parent], out=out)
    pictures = "".join(rf"\includegraphics{{{path.name}}}" for path in sorted(out.glob("*.pdf")))
    (out / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}\input{report.tex}"
        + pictures
        + r"\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ended = subprocess.run(command, cwd=out, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout.decode(errors="replace")[-2000:]
    assert (out / "paper.pdf").stat().st_size > 20_000
    assert pictures.count("includegraphics") == 3

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


def wide(rows, settings):
    titles = [f"CIFAR10, Similarity(similarity=0.{i})" for i in range(settings)]
    cells = [Cell(f"97.{i} ± 0.12") for i in range(settings)]
    return Table("wide", "Wide", [Column(t, t, "best") for t in titles], [(f"Method{i}", cells) for i in range(rows)])


def test_latex_of_many_settings_has_them_as_rows():
    text = latex(wide(2, 6))
    assert r"setting & Method0 & Method1 \\" in text
    assert r"CIFAR10, Similarity(similarity=0.5) & 97.5 $\pm$ 0.12 & 97.5 $\pm$ 0.12 \\" in text


def test_latex_headings_keep_words_whole():
    assert r"\shortstack[r]{CIFAR10,\\Similarity(similarity=0.1)}" in latex(wide(2, 5))


def compiled(folder, text):
    """What LaTeX says about a document; fails if it cannot be set."""
    (folder / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}" + text + r"\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    said = ended.stdout.decode(errors="replace")
    assert ended.returncode == 0, said[-2000:]
    return said


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no `pdflatex`")
def test_latex_of_many_settings_and_methods_fits_the_page(tmp_path):
    assert "Overfull" not in compiled(tmp_path, latex(wide(8, 9)))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no `pdflatex`")
def test_latex_and_pictures_of_a_report_make_a_page(out):
    write_run(out.parent / "c", "My_Method", 0, (0.5, 0.8), arguments={"a": "x_{1}^2&~#%"}, notice="5 % & honest_")
    report([out.parent], out=out)
    pictures = "".join(rf"\includegraphics{{{path.name}}}" for path in sorted(out.glob("*.pdf")))
    compiled(out, r"\input{report.tex}" + pictures)
    assert (out / "paper.pdf").stat().st_size > 20_000
    assert pictures.count("includegraphics") == 4

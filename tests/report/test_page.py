import re
import shutil
import subprocess

import pytest

from flightning.report import report
from flightning.report.page import MOST_PICTURE_BYTES
from flightning.report.quantities import NOTHING
from tests.report.synthetic import png, write_grid, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


def browse(path, profile, *flags, script=""):
    """The page as Chromium sees it after its own script and another one have run."""
    copy = path.with_name("copy.html")
    copy.write_text(path.read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", copy.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    write_grid(root / "runs", methods=("FedAvg", "FedProx", "SCAFFOLD"), seeds=2, rounds=8, notice="Scaled down.")
    report([root / "runs"], out=root / "out")
    return root / "out" / "report.html"


def test_page_needs_nothing_from_elsewhere(page):
    text = page.read_text()
    assert not re.search(r"https?://|//cdn|@import|<link|<iframe|url\(", text)
    assert set(re.findall(r'(?:src|href)="([^"]{0,5})', text)) <= {"data:", "#resu", "#curv", "#deta", "#part", "#conf"}
    assert "default-src 'none'" in text


def test_every_curve_stands_in_every_chart(page):
    text = page.read_text()
    assert text.count("<svg viewBox") == 3
    assert text.count('class="curve"') == text.count('class="band curve"') == 9
    assert "nan" not in re.sub(r"<script.*", "", text, flags=re.S).lower()


def test_single_seed_has_no_band(tmp_path):
    write_run(tmp_path / "a")
    report([tmp_path], out=tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert 'class="line"' in text
    assert 'class="band' not in text


def test_names_cannot_break_out_of_the_page(tmp_path):
    write_run(tmp_path / "a", "</script><b>x", data="<img src=x>", notice="<i>&")
    report([tmp_path], out=tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("</script>") == 2
    assert "<b>x" not in text
    assert "<img src=x>" not in text
    assert "&lt;i&gt;&amp;" in text


def test_differing_values_are_marked_and_seeds_are_not(page):
    rows = re.findall(r'<tr class="(diff|same)"><th scope="row">([^<]*)</th>(.*?)</tr>', page.read_text())
    kinds = {name.removeprefix("≠ "): (kind, cells) for kind, name, cells in rows}
    assert kinds["model.mu"] == ("diff", f"<td>{NOTHING}</td><td><mark>0.1</mark></td><td>{NOTHING}</td>")
    assert kinds["model.lr"] == ("same", '<td colspan="3">0.1</td>')
    assert kinds["seed_everything"] == ("same", '<td colspan="3">0, 1</td>')
    assert kinds["trainer.default_root_dir"][0] == "same"


def test_partition_picture_is_inside(page):
    assert page.read_text().count('src="data:image/png;base64,iVBOR') == 1


def test_pictures_that_would_burst_the_page_are_named_instead(tmp_path):
    for data in ("A", "B"):
        folder = write_run(tmp_path / data, data=data)
        (folder / "partition.png").write_bytes(png() + bytes(MOST_PICTURE_BYTES // 2 + 1))
    report([tmp_path], out=tmp_path / "out", mixed=True)
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("data:image/png") == 1
    assert "too large for this page: <code>" in text
    assert len(text) < 3_000_000


def test_notes_about_broken_lines_are_on_the_page(tmp_path):
    folder = write_run(tmp_path / "a")
    with (folder / "metrics.csv").open("a") as file:
        file.write("garbage\n")
    report([tmp_path], out=tmp_path / "out")
    assert "1 broken log line was skipped" in (tmp_path / "out" / "report.html").read_text()


@needs_chromium
def test_legend_hides_and_shows_a_method_in_every_chart(page, tmp_path):
    script = """
      const out = [], count = () => document.querySelectorAll(".curve.off").length;
      const button = document.querySelectorAll(".legend button")[1];
      out.push(count()); button.click(); out.push(count(), button.getAttribute("aria-pressed"));
      button.click(); out.push(count());
      button.dispatchEvent(new MouseEvent("dblclick")); out.push(count());
      document.getElementById("all").click(); out.push(count());
      document.title = out.join(" ");
    """
    # a line and a band in each of three charts
    assert "<title>0 6 false 0 12 0</title>" in browse(page, tmp_path, script=script)


@needs_chromium
def test_pointer_reads_off_the_values(page, tmp_path):
    script = """
      const svg = document.querySelector("svg[data-panel]"), box = svg.getBoundingClientRect();
      const at = (f) => svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + f * box.width}));
      at(0.97); document.title = svg.parentNode.querySelector(".tip").innerText.replaceAll("\\n", " / ");
      at(0.01); if (getComputedStyle(svg.parentNode.querySelector(".tip")).display !== "none") document.title = "stays";
    """
    title = re.search("<title>(.*?)</title>", browse(page, tmp_path, script=script))[1]
    assert re.fullmatch(r"round 8 / (\d\d\.\d\d ± \d\.\d\d (FedAvg|FedProx|SCAFFOLD)( / )?){3}", title)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_page_does_not_scroll_sideways(page, tmp_path, width):
    # a frame: the window of Chromium itself is never narrower than 500 pixels
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<iframe id="f" style="width:{width}px;height:800px;border:0" srcdoc="" ></iframe><script>'
        f"const f = document.getElementById('f'); f.onload = () => {{ const d = f.contentDocument.documentElement;"
        f" document.title = [d.clientWidth, d.scrollWidth, d.querySelectorAll('svg').length].join(' ') }};"
        f" f.srcdoc = {_literal(page.read_text())};</script></body>"
    )
    flags = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,900", "--virtual-time-budget=3000"]
    command = [CHROMIUM, *FLAGS, *flags, "--dump-dom", outer.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    inner, needed, charts = map(int, re.search(r"<title>(\d+) (\d+) (\d+)</title>", dom).groups())
    assert inner == width
    assert needed <= inner
    assert charts == 6  # three charts, three lines of the legend


@needs_chromium
@pytest.mark.parametrize(("dark", "expected"), [(False, "rgb(255, 255, 255)"), (True, "rgb(20, 23, 27)")])
def test_page_follows_the_colour_scheme(page, tmp_path, dark, expected):
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    script = "document.title = getComputedStyle(document.body).backgroundColor"
    assert f"<title>{expected}</title>" in browse(page, tmp_path, *flags, script=script)


@needs_chromium
def test_only_differing_settings_are_shown_until_asked(page, tmp_path):
    script = """
      const seen = () => [...document.querySelectorAll(".config tbody tr")].filter((r) => r.offsetParent).length;
      const first = seen(); document.getElementById("only").click(); document.title = `${first < seen()} ${first}`;
    """
    assert "<title>true 2</title>" in browse(page, tmp_path, script=script)


def _literal(text):
    import json

    return json.dumps(text).replace("<", "\\u003c")

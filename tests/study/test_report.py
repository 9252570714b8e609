"""The report of a tier: made of small files by hand, read as text and in a real browser."""

import json
import re
import shutil
import subprocess
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from ftis.papers.ftis.report import make_report
from ftis.study.plots import make_figure
from ftis.study.report.parts import by_difference, number, points, short
from ftis.suite.suite import Suite
from tests.written_runs import write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FIGURES = [name for name in Suite.load().grid.artefacts if name.startswith("fig")]
PICTURES = 7  # of `folder`: two figures, an ablation, the exact study, three of economics
HARM = "<think>3 + 4</think><script>alert(1)</script> & so on"


# ---------------------------------------------------------------- inputs


def write_csv(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def write_png(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (30, 20), "white").save(path)


def write_figure(folder: Path, name: str, ends: dict[str, list[float]]) -> None:
    """A figure of one model whose curves start at 0.5 and end, seed by seed, where `ends` says."""
    rows = []
    for series, values in ends.items():
        method = {"Alone": "alone", "NoIS": "nois"}.get(series, "ftis")
        for seed, value in enumerate(values, start=1):
            who = {"node": 0, "role": "base_small", "label": "XS base", "seed": seed, "split": "vertical"}
            for how, step, accuracy in (
                ("greedy", 0, 0.5),
                ("greedy", 40, value),
                ("sampled", 40, value - 0.1),
            ):
                point = {"decoding": how, "step": step, "value": accuracy, "problems": 100, "samples": 4}
                run = {"figure": name, "tier": "tiny", "run": f"{method}-s{seed}", "setup": "size_base"}
                rows.append({**run, "method": method, "g": "", **who, **point, "series": series})
    write_csv(folder / f"{name}.csv", rows)
    write_png(folder / f"{name}.png")


@pytest.fixture
def folder(tmp_path) -> Path:
    """paper_figures/tiny with all that a report shows and two figures, and paper_figures/exact beside it."""
    folder = tmp_path / "paper_figures" / "tiny"
    for name in ("fig1", "fig12"):
        write_figure(folder, name, {"Alone": [0.90, 0.92, 0.94], "NoIS": [0.60, 0.61, 0.65]})
    write_csv(
        folder / "table1.csv", [{"setting": "seeds", "paper": "42", "source": "code", "ours": "1, 2, 3"}]
    )
    table2 = {"pair": "Model sizes", "paper_model": "Qwen2.5-3B", "model": "S base", "benchmark": "tiny-ood"}
    paper = {"paper_alone": 0.575, "paper_ftis": 0.54, "paper_difference": -0.035}
    ours = {
        "alone": 0.5,
        "ftis": 0.512,
        "difference": 0.012,
        "difference_low": -0.01,
        "difference_high": 0.034,
    }
    write_csv(folder / "table2.csv", [{**table2, "problems": 1000, "seeds": 3, **paper, **ours}])
    test = {"component": "Alone - NoIS, end", "setup": "size_base", "role": "base_large", "unit": "accuracy"}
    claims = [
        {
            "claim": 1,
            "statement": "NoIS hurts",
            "paper": "Fig 1",
            "verdict": "holds",
            "effect": 0.305,
            **test,
        },
        {"claim": 2, "statement": "TIS wins", "paper": "Fig 2", "verdict": "fails", "effect": -0.031, **test},
        {"claim": 7, "statement": "g matters", "verdict": "undecided", "needed_seeds": "> 1000", **test},
        {
            "claim": 10,
            "statement": "8 bytes a token",
            "verdict": "holds",
            "effect": 8.2,
            "unit": "bytes a token",
        },
    ]
    spans = {"low": -0.05, "high": -0.01, "n_seeds": 3, "n_runs": 6}
    write_csv(folder / "claims.csv", [{**claim, **spans} for claim in claims])
    write_csv(folder / "claims_components.csv", [{**claim, **spans} for claim in claims])
    ablation = {"ablation": "cap", "setup": "size_base", "method": "tis", "g": "", "role": "base_small"}
    span = {"seeds": 3, "accuracy": 0.9, "low": 0.8, "high": 1.0}
    change = {"difference": -0.021, "difference_low": -0.03, "difference_high": -0.012}
    rows = [{"variant": "", "label": "as in the grid"}, {"variant": "c1", "label": "C = 1", **change}]
    alone = {"over_alone": -0.05, "over_alone_low": -0.06, "over_alone_high": -0.04}
    alone |= {"commit": "0123abc", "processor": "a CPU"}
    write_csv(folder / "ablation-cap.csv", [{**ablation, **span, **alone, **row} for row in rows])
    write_png(folder / "ablation-cap.png")
    gains = {"gain": 0.01, "gain_low": -0.01, "gain_high": 0.03, "gain_equal_tokens": 0.05}
    costs = {
        "alone_tokens": 2e6,
        "swarm_tokens": 1e6,
        "seconds_saved": 1.5,
        "seconds_saved_low": 1.0,
        "traffic": 8e6,
        "break_even": 5.3e6,
    }
    equal = {"gain_equal_tokens_low": 0.04, "gain_equal_tokens_high": 0.06}
    equal |= {"gain_equal_seconds": None, "gain_equal_seconds_low": None, "gain_equal_seconds_high": None}
    swarm = {"setup": "size_base", "method": "ftis", "g": 50, "split": "vertical", "label": "XS base"}
    write_csv(folder / "economics.csv", [{**swarm, **gains, **equal, **costs}])
    write_csv(folder / "economics_paper.csv", [{"tokens_a_second": 500, "seconds_saved": 86.4}])
    for name in ("economics", "economics_seconds", "economics_bytes"):
        write_png(folder / f"{name}.png")
    kinds = [("alone", "base_small", ""), ("nois", "size_base", ""), ("ftis", "size_base", 50)]
    runs, scores, said = [], [], []
    for method, setup, g in kinds:
        who = {"role": "base_small", "label": "XS base"}
        where = {"run": method, "setup": setup, "method": method, "g": g, "split": "vertical", "variant": ""}
        cost = {"tokens_generated": 1e6, "tokens_trained": 1.5e6, "bytes_sent": 8e6, "seconds_sample": 3600}
        made = {"commit": "0123abc", "recipe": "r1"}
        runs.append({**where, "seed": 1, "node": 0, **who, "iterations": 40, **cost, **made})
        score = {"run": method, "node": 0, "benchmark": "id", "decoding": "greedy", "accuracy": 0.875}
        score |= {"dataset": "gsm8k", "format_rate": 0.5, "truncated": 0.0, "problems": 8, "samples": 1}
        other = {"math_verify": 0.75, "math_verify_faults": 1, "only_ours": 2, "only_math_verify": 1}
        scores.append({**score, **other})
        for question in range(8):
            right = method != "nois"
            text = {"text": HARM, "correct": right, "format": right, "sample": 0}
            asked = {"benchmark": "id", "id": f"q{question}", "question": "Is 1 < 2?", "gold": "7"}
            said.append({"run": method, "method": method, "setup": setup, **who, "seed": 1, **asked, **text})
    write_csv(folder / "tidy" / "runs.csv", runs)
    write_csv(folder / "tidy" / "scores.csv", scores)
    write_csv(folder / "tidy" / "completions.csv", said)
    kind = {"benchmark": "id", "ours": False, "math_verify": True, "reason": "no_answer", "kind_rows": 3}
    differ = [{**kind, "rows": 1, "id": f"q{n}", "gold": "18", "read": "18"} for n in range(3)]
    gave_up = {**kind, "ours": True, "math_verify": None, "reason": "equal", "kind_rows": 6, "rows": 6}
    differ.append({**gave_up, "id": "q7", "gold": "<b>", "extracted": r"\frac{1}{2}"})
    write_csv(folder / "tidy" / "disagreements.csv", differ)
    (folder / "provenance.json").write_text(
        json.dumps({"git": {"commit": "0123abc"}, "packages": {"torch": "2"}})
    )
    write_csv(
        folder.parent / "exact" / "exact_findings.csv",
        [{"topic": "cap", "finding": "Bias of TIS", "where": "KL = 1", "value": 0.042}],
    )
    write_png(folder.parent / "exact" / "exact_cap.png")
    return folder


def report(folder: Path, exact: bool = True) -> str:
    out = folder.parent / "report.html"
    make_report("tiny", folder, folder.parent / "exact" if exact else None, out)
    return out.read_text()


class Page(HTMLParser):
    """A page's words, the attributes of its tags, and what is in each section."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: dict[str, str] = {}
        self.section = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"]

    def handle_data(self, data):
        so_far = self.words.get(self.section, "")
        self.words[self.section] = f"{so_far} {' '.join(data.split())}".strip() if data.strip() else so_far

    def named(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.tags if name == tag]


# ---------------------------------------------------------------- what it says


def test_every_section_shows_its_numbers(folder):
    words = Page(report(folder)).words
    assert "2 of 4 claims hold" in " ".join(re.sub(r"(of 4 claims hold) (2)", r"\2 \1", words[""]).split())
    assert "3 training runs" in re.sub(r"(training runs) (3)", r"\2 \1", words["runs"])
    assert "3.0 h" in words["runs"] and "24 MB" in words["runs"] and "4.5 M" in words["runs"]
    assert "Qwen2.5-3B 57.5 54.0 −3.5 S base 50.0 51.2 +1.2 −1.0 to +3.4" in words["paper"]
    assert "XS base F-TIS g = 50, vertical 1 87.5 50.0" in words["paper"]
    # Three runs of 8 answers each: 7 of 8 right by ours, 6 of 8 by math-verify.
    assert "gsm8k in distribution, greedy 24 87.5 75.0 −12.5 6 3 3" in words["graders"]
    assert "NoIS 8 87.5 75.0 −12.5 2 1 1" in words["graders"]
    assert "ours says no_answer: 3 answers q0 18 – 18 ✗ wrong ✓ right 1" in words["graders"]
    assert r"ours says equal: 6 answers q7 <b> \frac{1}{2} – ✓ right gave up 6" in words["graders"]
    assert "+30.5 −5.0 to −1.0" in words["claims"] and "8.2 bytes a token" in words["claims"]
    assert "the unchanged run: C = 1 (base_small −2.1)" in words["ablations"]
    assert "Runs of commit 0123abc, on a CPU." in words["ablations"]
    assert "Bias of TIS KL = 1 0.042" in words["exact"]
    found = "+1.0 −1.0 to +3.0 +5.0 +4.0 to +6.0 – – 1 M / 2 M 8 MB 5.3 MB/s"
    assert f"XS base F-TIS, g = 50, vertical {found}" in words["economics"]
    assert "Tokens a second Seconds saved 500 86.4" in words["economics"]
    assert "Alone 8 100.0 100.0" in words["answers"] and "NoIS 8 0.0 0.0" in words["answers"]
    assert "commit 0123abc" in words["provenance"] and "Commit Runs 0123abc 3" in words["provenance"]
    assert "Recipe of each run Run Recipe alone r1 nois r1" in words["provenance"]


def test_captions_say_what_the_curves_show(folder):
    words = Page(report(folder)).words["figures"]
    # 60, 61, 65 against 90, 92, 94: -30, -31, -29, whose mean is told apart from 0 by its t-interval
    # -30 +- 4.3027 x 1 / sqrt(3) = -32.5 to -27.5.
    assert "After iteration 40, greedy, in points: Below alone: NoIS (XS base −30.0)." in words
    assert "After iteration 40, at T = 1, in points: Below alone: NoIS (XS base −30.0)." in words
    assert "XS base NoIS 3 56.0 62.0 −30.0" in words and "XS base NoIS 3 52.0 52.0 −30.0" in words
    assert "−32.5 to −27.5" in words
    assert "The paper: NoIS leaves both models worse than alone." in words


def test_a_figure_as_it_is_made(folder):
    cells = ("alone-base_small", "alone-base_large", "size_base-nois-vertical")
    slugs = [f"{cell}-s{seed}" for cell in cells for seed in (1, 2)]
    make_figure("fig1", "tiny", [write_run(folder, slug, lambda role, step: 0.5) for slug in slugs], folder)
    page = Page(report(folder))
    assert len(page.named("img")) == PICTURES
    assert "Not told apart from alone: NoIS (XS base 0.0, S base 0.0)." in page.words["figures"]


def test_one_seed_tells_nothing(folder):
    write_figure(folder, "fig1", {"Alone": [0.9], "NoIS": [0.6]})
    words = Page(report(folder)).words["figures"]
    assert "One seed, so no interval" in words and "−30.0" in words


def test_sentences_by_what_intervals_tell():
    rows = [("A", "x", -0.1, -0.2, -0.05), ("A", "y", 0.01, -0.2, 0.3), ("B", "x", 0.1, 0.05, 0.2)]
    assert by_difference(rows, "alone") == (
        "Below alone: A (x −10.0). Above alone: B (x +10.0). Not told apart from alone: A (y +1.0)."
    )


def test_graders_that_agree_and_tables_from_before_there_were_two(folder):
    table2, scores = folder / "table2.csv", pd.read_csv(folder / "tidy/scores.csv")
    numbers = ("alone", "ftis", "difference", "difference_low", "difference_high")
    values = dict(zip(numbers, (0.6, 0.65, 0.05, 0.04, 0.06), strict=True))
    pd.read_csv(table2).assign(**{f"math_verify_{k}": v for k, v in values.items()}).to_csv(
        table2, index=False
    )
    scores.assign(only_ours=0, only_math_verify=0).to_csv(folder / "tidy/scores.csv", index=False)
    words = Page(report(folder)).words
    assert "S base 50.0 60.0 51.2 65.0 +1.2 +5.0 −1.0 to +3.4 +4.0 to +6.0" in words["paper"]
    assert words["graders"].endswith("The two graders agree on every answer.")
    scores.drop(columns="math_verify").to_csv(folder / "tidy/scores.csv", index=False)
    words = Page(report(folder)).words
    assert (
        "scores.csv lacks math_verify. Made by snakemake -c2 paper_figures/tiny/tidy/scores.csv"
        in words["graders"]
    )
    assert "Out of distribution" not in words["graders"] and "87.5" in words["paper"]


def test_what_does_not_reproduce(folder):
    words = Page(report(folder)).words["differs"]
    assert "Claim 2 fails." in words and "Claim 7 is undecided." in words and "NoIS hurts" not in words
    assert "at this effect and spread: > 1000." in words
    assert "Model sizes, S base: paper −3.5, ours +1.2 (−1.0 to +3.4, which includes 0)." in words
    assert "1 of 1 gain in Table 2" in words


def test_nothing_differs(folder):
    claims = pd.read_csv(folder / "claims.csv").assign(verdict="holds")
    claims.to_csv(folder / "claims.csv", index=False)
    pd.read_csv(folder / "table2.csv").assign(difference=-0.01).to_csv(folder / "table2.csv", index=False)
    words = Page(report(folder)).words["differs"]
    assert words.endswith("All of 4 claims hold. No gain in Table 2 differs in sign from the paper's.")


def test_completions_are_text_and_say_right_or_wrong(folder):
    page = report(folder)
    assert HARM not in page and "<script" not in page
    assert "&lt;think&gt;3 + 4&lt;/think&gt;" in page and "Is 1 &lt; 2?" in page
    words = Page(page).words["answers"]
    assert (
        "NoIS ✗ wrong, not in the format" in words
        and "Alone ✓ right" in words
        and "2 more questions" in words
    )


def test_numbers_as_text():
    assert [points(x) for x in (0.0123, -0.0004, -0.5)] == ["+1.2", "0.0", "−50.0"]
    assert [number(x) for x in (1234567.0, 0.12345, -2, None, float("nan"), "", True)] == [
        *("1,234,567", "0.1235", "−2", "–", "–", "–", "yes"),
    ]
    assert [short(x, "B") for x in (1234567, 12, 0)] == ["1.23 MB", "12 B", "0 B"]


# ---------------------------------------------------------------- what may be missing


def test_an_empty_folder_says_how_to_fill_it(tmp_path):
    page = report(tmp_path / "nothing")
    words = Page(page).words
    assert list(words) == [
        *("", "runs", "paper", "graders", "claims", "differs", "figures", "ablations", "exact", "economics"),
        *("answers", "provenance"),
    ]
    for section, target in {
        "runs": "tidy/runs.csv",
        "paper": "table2.csv",
        "graders": "tidy/scores.csv",
        "claims": "claims.csv",
        "figures": "fig1.csv",
        "economics": "economics.csv",
        "answers": "tidy/completions.csv",
        "provenance": "provenance.json",
    }.items():
        assert f"snakemake -c2 paper_figures/tiny/{target}" in words[section]
    assert "snakemake -c2 paper_figures/exact/exact_findings.csv" in words["exact"]
    assert "No folder of the exact study was given." in report(tmp_path / "nothing", exact=False)
    assert str(tmp_path) not in page


INPUTS = [
    *(
        "table1.csv",
        "table2.csv",
        "fig1.csv",
        "fig1.png",
        "claims.csv",
        "claims_components.csv",
        "economics.csv",
    ),
    *("ablation-cap.csv", "ablation-cap.png", "tidy/runs.csv", "tidy/scores.csv", "tidy/completions.csv"),
    "tidy/disagreements.csv",
    *("provenance.json", "../exact/exact_findings.csv", "../exact/exact_cap.png"),
]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("content", [None, b"", b"nonsense\n1\n", b"\xff\xfe\x00 \x81", b"[1, 2]"])
def test_a_bad_file_costs_its_own_place_alone(folder, name, content):
    path = folder / name
    path.unlink() if content is None else path.write_bytes(content)
    page = Page(report(folder))
    assert len(page.words) == 12
    assert PICTURES - 1 <= len(page.named("img")) <= PICTURES
    assert "Below alone: NoIS" in page.words["figures"]


# ---------------------------------------------------------------- one file


def test_same_inputs_same_bytes(folder):
    assert report(folder) == report(folder)


def test_loads_nothing_from_elsewhere(folder):
    page = Page(report(folder))
    assert not page.named("script")
    loads = [
        a.get("src") or a.get("href") for tag in ("img", "link", "iframe", "source") for a in page.named(tag)
    ]
    assert loads and all(where.startswith("data:") for where in loads)
    assert not re.search(r"@import|url\(", report(folder))
    assert all(picture["alt"] for picture in page.named("img"))
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {a["href"][1:] for a in page.named("a") if a["href"].startswith("#")} <= ids


# ---------------------------------------------------------------- in a browser

# In a copy of the page: opens what is folded, then tells the page around it what it looks like.
PROBE = """<script>
document.querySelectorAll("details").forEach(d => d.open = true);
addEventListener("load", () => parent.postMessage({
  width: innerWidth, content: document.documentElement.scrollWidth,
  images: document.images.length,
  loaded: [...document.images].filter(i => i.complete && i.naturalWidth > 0).length,
}, "*"));
</script>"""
FRAMES = """<script>
const seen = [];
addEventListener("message", m => { seen.push(m.data); document.title = JSON.stringify(seen); });
</script>
<iframe src="copy.html" style="width:390px;height:800px;border:0"></iframe>
<iframe src="copy.html" style="width:1280px;height:800px;border:0"></iframe>"""


def browse(page: Path, *options: str) -> subprocess.CompletedProcess:
    """Runs the browser on a page. On a busy machine its start may hang, whatever the page: then once more."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    for patience in (60, 180):
        profile = f"--user-data-dir={page.parent / f'profile{patience}'}"
        whole = [*command, *quiet, profile, *options, page.as_uri()]
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(whole, capture_output=True, text=True, timeout=patience, check=True)
    raise TimeoutError(f"{BROWSER} didn't come back from {page}, twice")


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")


@needs_browser
def test_browser_shows_every_figure_at_any_width(folder, tmp_path):
    for name in FIGURES:
        write_figure(folder, name, {"Alone": [0.9, 0.9], "NoIS": [0.6, 0.7]})
    page = report(folder)
    policy = re.search(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", page).group()
    (tmp_path / "copy.html").write_text(page.replace(policy, "").replace("</body>", f"{PROBE}</body>"))
    (tmp_path / "frames.html").write_text(FRAMES)
    title = re.search(
        r"<title>(.*?)</title>",
        browse(tmp_path / "frames.html", "--dump-dom", "--virtual-time-budget=5000").stdout,
    ).group(1)
    seen = sorted(json.loads(title), key=lambda frame: frame["width"])
    assert [frame["width"] for frame in seen] == [390, 1280]
    for frame in seen:
        assert frame["content"] <= frame["width"]
        assert frame["loaded"] == frame["images"] == PICTURES - 2 + len(FIGURES)


@needs_browser
def test_browser_has_nothing_to_complain_of(folder, tmp_path):
    page = report(folder)
    out = folder.parent / "report.html"
    assert "CONSOLE" not in browse(out, "--dump-dom").stderr
    # The check sees what there is to see: a script in the page is refused by its own policy, with a message.
    (tmp_path / "bad.html").write_text(page.replace("</body>", "<script>1</script></body>"))
    assert "CONSOLE" in browse(tmp_path / "bad.html", "--dump-dom").stderr


@needs_browser
def test_browser_prints_it(folder, tmp_path):
    report(folder)
    browse(folder.parent / "report.html", f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")

"""The wheel by itself, away from the checkout: the suite that it carries, and what it needs."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SNAKEMAKE", "FTIS"))}


def run(*command, **named):
    """What a command says; it must end well."""
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **named,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip(
        "hatchling", reason="hatchling, which builds the wheel, is not installed here (extra test)"
    )
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("ftis-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The environment in which `ftis` is the wheel's, installed by pip, beside the packages that run these
    tests."""
    folder = tmp_path_factory.mktemp("installed")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        folder,
        wheel,
    )
    return CLEAN | {"PYTHONPATH": str(folder)}


def test_it_carries_the_workflow_and_no_file_of_a_checkout(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = run("git", "ls-files", "workflow", "ftis", cwd=ROOT).split()
    expected = {name.replace("workflow/", "ftis/default_suite/", 1) for name in listed}
    assert {name for name in names if not name.startswith("ftis-")} == expected
    assert {
        "ftis/py.typed",
        "ftis/study/report/report.html.jinja",
        "ftis/default_suite/config/grid.yaml",
    } <= names


def test_a_copy_in_an_empty_folder_is_a_workflow_that_runs(installed, tmp_path):
    """ftis init, then one command: a dry run of the whole smoke tier, and its first job."""

    def here(*command):
        return run(sys.executable, *command, cwd=tmp_path, env=installed)

    assert here("-c", "import ftis; print(ftis.__file__)").startswith(installed["PYTHONPATH"])
    assert here("-m", "ftis.cli", "init").endswith("snakemake -c2\n")
    assert os.access(tmp_path / "workflow/scripts/job", os.X_OK)
    planned = here("-m", "snakemake", "--dry-run", "--quiet", "rules")
    assert "97" in next(line for line in planned.splitlines() if line.startswith("total")).split(), planned
    tokenizer = "results/smoke/models/tokenizer/tokenizer.json"
    here("-m", "snakemake", "--cores", "1", "--quiet", "all", "--", tokenizer)
    assert (tmp_path / tokenizer).stat().st_size > 0
    assert (tmp_path / "results/smoke/logs/tokenizer.log").read_text().startswith("=== ")


def test_the_suite_is_there_without_a_copy(installed, tmp_path):
    code = "import ftis; print(len(ftis.Suite.load().runs('smoke')), ftis.Suite.load().folder)"
    count, folder = run(sys.executable, "-c", code, cwd=tmp_path, env=installed).split()
    from ftis.suite.suite import Suite

    assert int(count) == len(Suite(ROOT / "workflow/config").runs("smoke"))
    assert Path(folder) == Path(installed["PYTHONPATH"]) / "ftis/default_suite/config"


SLIM = """
import importlib.util, math

import torch

import ftis
from ftis.study.exact import findings, tables
from ftis.study.exact.cases import Case, case_groups, measures
from ftis.study.exact.enumerable import kl, token_logps
from ftis.study.exact.problems import at_distance, expert, problem_of

for name in ("transformers", "snakemake", "tokenizers", "peft", "datasets", "matplotlib", "hatchling"):
    assert importlib.util.find_spec(name) is None, name

# A token whose ratio to its sampler is e^0.2, advantage 1: the weight is that, or the cap.
for cap, weight in ((2.0, math.exp(0.2)), (1.0, 1.0)):
    logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    gen, yes = torch.tensor([[-1.2]], dtype=torch.float64), torch.tensor([True])
    objective = ftis.Objective.of(ftis.METHODS["tis"], cap=cap)
    loss = ftis.grpo_loss(objective, logp, gen, yes[None], torch.ones(1, dtype=torch.float64), ~yes, torch.tensor([1]))
    loss.total.backward()
    assert math.isclose(logp.grad.item(), -weight, rel_tol=1e-12), (cap, logp.grad)

# The exact study: without distance nothing is biased; with it, uncorrected updates are the most.
problem = problem_of("peer", 0)
bias = {}
for distance in (0.0, 0.3):
    gen = token_logps(problem, at_distance(problem, expert(problem, "peer", 0), distance))
    assert abs(kl(gen, token_logps(problem, problem.theta)) - distance) < 1e-6
    alone = case_groups(Case("alone", "alone", nodes=1), problem, [], {})[0][0]
    for method in ("nois", "tis"):
        case = Case("methods", method)
        bias[method, distance] = measures(case, problem, case_groups(case, problem, [gen], {}), alone)["relative_bias"]
assert bias["nois", 0.0] < 1e-9 and bias["tis", 0.0] < 1e-9, bias
assert bias["nois", 0.3] > bias["tis", 0.3] > 0, bias

assert len(ftis.Suite.load().runs("smoke")) > 0
try:
    ftis.Swarm
except ImportError as error:
    assert isinstance(error, ftis.UserError) and "pip install 'ftis[run]'" in str(error), error
else:
    raise AssertionError("a swarm without transformers")
"""


@pytest.mark.long
def test_alone_it_has_the_equations_and_the_exact_study(wheel, tmp_path):
    """In an environment of its own: pip brings what the wheel names, and neither transformers nor Snakemake.
    What needs them says how to get them."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
        wheel,
        cwd=tmp_path,
        env=CLEAN,
    )
    run(python, "-c", SLIM, cwd=tmp_path, env=CLEAN)
    command = tmp_path / "venv/bin/ftis"
    assert run(command, "--version", cwd=tmp_path, env=CLEAN).startswith("ftis ")
    drawn = subprocess.run(
        [command, "job", "exact", "--out", "x"],
        check=False,
        cwd=tmp_path,
        env=CLEAN,
        capture_output=True,
        text=True,
    )
    assert (
        drawn.returncode == 2
        and "pip install 'ftis[workflow]'" in drawn.stderr
        and drawn.stderr.count("\n") == 1
    )

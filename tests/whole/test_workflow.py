"""The graph of jobs, by dry runs of Snakemake in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ftis.errors import UserError
from ftis.suite import slurm
from ftis.suite.suite import Suite
from ftis.suite.workflow import Config
from tests.parts import copy_checkout

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plan(tmp_path):
    """Dry run: its exit code, the number of jobs a rule, and all that it printed."""
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")

    def call(*arguments, config=()):
        command = [
            "-s",
            ROOT / "workflow/Snakefile",
            "--directory",
            tmp_path,
            "-n",
            "--cores",
            "2",
            *arguments,
        ]
        code, printed = _snakemake(*command, *(["--config", *config] if config else []))
        return code, _jobs(printed), printed

    return call


def _jobs(printed):
    """The number of jobs a rule."""
    table = re.search(r"job +count\n-+ +-+\n(.*?)\n\n", printed, re.DOTALL)
    jobs = dict(line.split() for line in table[1].splitlines()) if table else {}
    return {rule: int(n) for rule, n in jobs.items() if rule != "total"}


def _snakemake(*arguments, program=("-m", "snakemake")):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SNAKEMAKE", "FTIS"))}
    command = [sys.executable, *program, "--nolock", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=clean)
    return done.returncode, done.stdout + done.stderr


def test_default_target_is_the_smoke_tier_with_all_artefacts(plan):
    code, jobs, printed = plan("--quiet", "rules")
    assert code == 0, printed
    assert jobs == {
        "all": 1,
        "tokenizer": 1,
        "tiny_data": 1,
        "warm_start": 4,
        "train": 21,
        "generate": 25,  # four of them before training
        "score": 25,
        "figure": 12,
        "table": 2,
        "tidy": 1,
        "claims": 1,
        "economics": 1,
        "exact": 1,
        "report": 1,
    }


def test_full_grid_of_the_paper(plan):
    code, jobs, printed = plan("--quiet", "rules", config=["tier=paper", "grid=full", "seeds=5"])
    assert code == 0, printed
    shown = dict.fromkeys(("all", "tidy", "claims", "economics", "exact", "report"), 1)
    assert jobs == {**shown, "train": 930, "generate": 934, "score": 934, "figure": 12, "table": 2}


def test_ablations_are_targets_of_their_own(plan):
    target = "paper_figures/tiny/ablation-cap.csv"
    code, jobs, printed = plan(target, "--quiet", "rules", config=["tier=tiny", "seeds=1"])
    assert code == 0, printed
    # 2 alone, TIS and F-TIS, and each of the latter with three caps
    assert jobs["train"] == 10 and jobs["ablation"] == 1 and "report" not in jobs
    code, jobs, printed = plan("--quiet", "rules", config=["tier=smoke", "ablations=[cap,batch]"])
    assert code == 0, printed
    # TIS and F-TIS with three caps; both models alone, NoIS and F-TIS with twice the prompts
    assert jobs["train"] == 21 + 6 + 4 and jobs["ablation"] == 2 and jobs["report"] == 1


def test_a_figure_trains_its_own_runs_in_the_tier_that_its_path_names(plan):
    code, jobs, printed = plan("paper_figures/tiny/fig10.pdf", config=["tier=paper", "seeds=2"])
    assert code == 0, printed
    assert jobs == {"tokenizer": 1, "tiny_data": 1, "warm_start": 4, "train": 8, "figure": 1}
    trained = set(re.findall(r"training (\S+)", printed))
    assert trained == {f"size_base-ftis-g{g}-vertical-s{s}" for g in (5, 10, 50, 100) for s in (42, 1)}
    assert not re.search(r"(results|paper_figures)/(?!tiny/)\w+/", printed)


@pytest.mark.parametrize(
    ("target", "config", "message"),
    [
        (None, "tier=huge", "unknown tier 'huge': choose one of paper, small, small_qwen, smoke, tiny"),
        (None, "girds=full", "girds: unknown key; the keys here are"),
        (None, "ablations=[caps]", "unknown ablation 'caps': choose one of .*cap, .*readings"),
        ("paper_figures/tiny/ablation-caps.csv", None, "unknown ablation 'caps': choose one of"),
        (
            "results/tiny/runs/size_base-gepo-vertical-s42/scores.json",
            None,
            "unknown method 'gepo': choose one of fnois, ftis",
        ),
        (
            "paper_figures/small/fig5.pdf",
            None,
            "tier small has no models for .*it has fig1, .*fig12, table1, table2",
        ),
    ],
)
def test_unknown_names_are_errors_that_say_what_exists(plan, target, config, message):
    code, _, printed = plan(*([target] if target else []), config=[config] if config else [])
    assert code != 0
    assert re.search(message, printed), printed
    assert "Traceback (most recent call last)" not in printed


@pytest.fixture
def made(tmp_path):
    """Makes targets in a copy of the checkout, out of files that say nothing; then the rules that a change in
    a settings file would run again for them."""
    checkout = copy_checkout(tmp_path)

    def call(*arguments):
        code, printed = _snakemake("-s", checkout / "workflow/Snakefile", "-d", checkout, "-c1", *arguments)
        assert code == 0, printed
        return printed

    def make(*targets):
        for file in re.findall(r"^(\S+/\S+)\t", call(*targets, "--summary"), re.MULTILINE):
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            (checkout / file).write_text("made\n")  # an output that is empty is an error
        call(*targets, "--touch", "-F")

        def changed(file, old, new):
            path = checkout / "workflow/config" / file
            text = path.read_text()
            assert text.count(old) == 1
            path.write_text(text.replace(old, new))
            return set(_jobs(call(*targets, "-n")))

        return changed

    return make


def test_answers_before_training_are_redone_when_their_model_changes(made):
    """A model from outside has no file that could tell; a new label is no reason."""
    changed = made("results/paper/runs/start-base_small-s42/scores.json")
    assert not changed("tiers/paper.yaml", 'label: "1.5B"', 'label: "Small"')
    old, new = "8faed761d45a263340a0528343f099c05c9a4323", "f" * 40
    assert changed("tiers/paper.yaml", old, new) == {"generate", "score"}


def test_a_changed_title_or_label_redraws_and_does_nothing_else(made):
    shown = ("fig1.csv", "table2.csv", "claims.csv", "economics.csv")
    changed = made(*(f"paper_figures/smoke/{file}" for file in shown))
    drawn = changed("grid.yaml", 'title: "Model sizes, base"', 'title: "Sizes"')
    assert drawn == {"table", "claims", "economics"}
    assert changed("tiers/smoke.yaml", 'label: "XS base",', 'label: "XS",') == drawn | {"figure", "tidy"}


def test_slurm_profile_runs_the_paper_tier_whatever_else_is_set():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    local = ["--executor", "local", "--cores", "1"]
    code, printed = _snakemake(
        "--profile", "slurm", "-n", "--quiet", "rules", *local, "--config", "grid=full"
    )
    assert code == 0, printed
    assert re.search(r"^train +186$", printed, re.MULTILINE) and "warm_start" not in printed


def test_slurm_profile_lists_the_paper_s_runs_with_their_resources():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    code, printed = _snakemake("--profile", "workflow/profiles/slurm", "-n", "runs")
    assert code == 0, printed
    listed = dict(re.findall(r"paper: training (\S+) \((.*)\)", printed))
    assert len(listed) == 21
    alone = {run: listed.pop(run) for run in list(listed) if run.startswith("alone-")}
    assert set(alone.values()) == {"1 GPUs, 60000 MB, 720 minutes"} and len(alone) == 6
    assert set(listed.values()) == {"2 GPUs, 110000 MB, 720 minutes"}  # a GPU a node


class Resources(dict):
    """As Snakemake's: read as items and as attributes."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.__dict__ = self


@pytest.mark.parametrize(
    ("gpus", "more", "asked"),
    [
        (0, {}, {"--ntasks=1"}),
        (2, {}, {"--gpus=2"}),
        (1, {"gpu_model": "h100", "qos": "long"}, {"--gpus=h100:1", "--qos=long"}),
        (0, {"gres": "gpu:h100:1"}, {"--gres=gpu:h100:1"}),
    ],
)
def test_slurm_is_asked_beforehand_what_jobs_are_submitted_with(gpus, more, asked):
    """One task with the job's threads, however many GPUs it has."""
    pytest.importorskip("snakemake_executor_plugin_slurm")
    profile = yaml.safe_load((ROOT / "workflow/profiles/slurm/profile.yaml").read_text())
    resources = Resources(profile["default-resources"], gpu=gpus, **more)
    job = SimpleNamespace(resources=resources, threads=8, rule=SimpleNamespace(name="train"))
    settings = SimpleNamespace(requeue=False, no_requeue=True, qos=None, reservation=None)
    command = slurm.sbatch_command(job, settings)
    flags = set(re.findall(r"--(?:ntasks[a-z-]*|cpus-per-[a-z]+|nodes|gpus|gres|qos)=\S+", command))
    assert flags == {"--cpus-per-task=8", "--nodes=1"} | asked
    assert " -p cpu " in command and "--mem 2000" in command and "--no-requeue" in command


def test_what_the_slurm_plugin_refuses_names_the_rows_of_the_profile():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    for wrong, said in (
        ({"slurm_extra": "--qos=long"}, "slurm_extra"),
        ({"gres": "gpu 1"}, "Invalid GRES format"),
    ):
        job = SimpleNamespace(resources=Resources(wrong), threads=1, rule=SimpleNamespace(name="train"))
        with pytest.raises(
            UserError, match=rf"a train job can't be submitted: .*{said}.* Rows for partition, .*profile"
        ):
            slurm.sbatch_command(job, None)


def test_small_tier_warms_its_models_up_first(plan):
    code, jobs, printed = plan("--quiet", "rules", config=["tier=small"])
    assert code == 0, printed
    assert jobs["warm_start"] == 2 and jobs["train"] == 16 and jobs["generate"] == 18
    assert "tokenizer" not in jobs and "tiny_data" not in jobs


# Snakemake's command line, but for jobs: it says what limit they would be started under.
LIMIT = """
import sys
from snakemake.cli import main
from snakemake.scheduling.job_scheduler import JobScheduler

def schedule(self):
    limiter = self.job_rate_limiter
    print("limit:", limiter and (limiter.max_jobs, limiter.timespan))
    return True

JobScheduler.schedule = schedule
main(sys.argv[1:])
"""


@pytest.mark.parametrize(("own", "limit"), [((), "None"), (("--max-jobs-per-timespan", "5/1m"), "(5, 60.0)")])
def test_only_a_rate_limit_of_ones_own_is_in_force_when_jobs_start(tmp_path, own, limit):
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    command = ["-s", ROOT / "workflow/Snakefile", "--directory", tmp_path, "-c1", *own]
    target = "results/smoke/models/tokenizer/tokenizer.json"
    _, printed = _snakemake(*command, "--", target, program=("-c", LIMIT))
    assert f"limit: {limit}\n" in printed, printed


def test_the_page_on_configuration_names_every_key_and_tier():
    page = (ROOT / "config/README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(Config.__dataclass_fields__)
    assert [name for name in Suite.load().tiers if f"`{name}`" not in page] == []


def test_lint_has_only_its_environment_hint():
    _, printed = _snakemake("--lint")
    hints = re.findall(r"^ {4}\* (.*)$", printed, re.MULTILINE)
    assert set(hints) <= {"Specify a conda environment or container for each rule.:"}, printed


def test_snakefmt_is_clean():
    command = [Path(sys.executable).with_name("snakefmt"), "--check", "workflow"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr

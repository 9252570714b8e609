"""How the tiny tier's set-up was chosen: without looking at what any method does in a swarm.

    python benchmarks/tiny_setup.py [--jobs 2] [--work DIR]

On two tuning seeds that no result is reported for, this measures
1. what a warm start knows: accuracy greedy and at T = 1, in and out of distribution, by its settings;
2. how far apart two warm models are: KL(gen || theta) of a completion, and the overlap E_gen[min(1, theta /
gen)],
   the mass that their distributions over completions share;
3. how each model learns alone, by learning rate.
The rule: the first of the warm starts tried, from the farthest apart to the nearest, with which for every
model on both seeds accuracy at T = 1 is at least 0.3, greedy at most 0.75 and greedy out of distribution
between 0.15 and 0.60, and with which the median KL of every ordered pair lies between 5 and 100, the
thresholds g of the paper: a filter whose threshold nothing or everything passes says nothing about g. Then
the largest learning rate at which, in either seed, no model alone ends more than 2 points below its best
validation at T = 1 (it would be unstable) or above 0.95 (a ceiling hides differences). Writes
benchmarks/results/tiny_setup.json.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import one_thread  # noqa: F401
import record
import torch

from ftis.config import Validation
from ftis.model.loading import load_policy
from ftis.model.sampler import TransformersSampler
from ftis.runs.answers import complete, summary
from ftis.runs.train import train
from ftis.suite.suite import Suite
from ftis.tasks.grading.verdict import grade_many
from ftis.tasks.problems import Dataset, load_problems
from ftis.tasks.tiny.models import make_data, make_model, make_tokenizer

SEEDS = (1001, 1002)
WARM = ((0.02, 1500, 1235), (0.04, 1500, 1235), (0.04, 2000, 1425))
"""Share of solutions in other styles, steps of XS and of S."""
RATES = (4e-4, 2e-4, 1e-4)
PAIRS = (("base_small", "base_large"), ("base_small", "coder_small"), ("base_large", "coder_large"))
ROLES = ("base_small", "base_large", "coder_small", "coder_large")


def answer(policy, path: Path, samples: int, limit: int) -> dict:
    """Scores of that many samples a problem, or of greedy answers."""
    problems = load_problems(Dataset(name="tiny", path=str(path), split="test", limit=limit))
    rows = list(
        complete(
            policy.tokenizer,
            TransformersSampler(policy),
            problems,
            "tiny-v1",
            80,
            (7,),
            samples,
            samples == 0,
        )
    )
    verdicts = grade_many([(text, problems[i].gold, problems[i].task) for i, _, _, text in rows])
    return summary(verdicts, [not c.finished for _, _, c, _ in rows])


def made(root: Path, role: str, seed: int, other_share: float, *steps: int) -> Path:
    """Where a warm model lies; `steps` is its own number, or those of XS and S."""
    own = steps[0] if len(steps) == 1 else steps["large" in role]
    return root / f"{role}-{other_share}-{own}-{seed}"


def warm(root: Path, role: str, seed: int, other_share: float, steps: int) -> dict:
    torch.set_num_threads(1)
    model = Suite.load().tier("tiny").models[role].tiny
    model = replace(model, other_share=other_share, steps=steps)
    out = made(root, role, seed, other_share, steps)
    if not (out / "warm.json").exists():
        make_model(model, seed, root / "tok", root / "data", out)
    policy = load_policy(str(out), device="cpu")
    return {
        "role": role,
        "seed": seed,
        "other_share": other_share,
        "steps": steps,
        "greedy": answer(policy, root / "data/validation.jsonl", 0, 1024)["accuracy"],
        "sampled": answer(policy, root / "data/validation.jsonl", 2, 1024)["accuracy"],
        "ood_greedy": answer(policy, root / "data/ood.jsonl", 0, 1024)["accuracy"],
        "ood_sampled": answer(policy, root / "data/ood.jsonl", 2, 1024)["accuracy"],
    }


def distance(root: Path, gen: str, theta: str, seed: int, other_share: float, xs: int, s: int) -> dict:
    """Between two warm models, over the sampled completions of 128 training questions x 4."""
    torch.set_num_threads(1)
    a, b = (
        load_policy(str(made(root, role, seed, other_share, xs, s)), device="cpu") for role in (gen, theta)
    )
    problems = load_problems(Dataset(name="tiny", path=str(root / "data/train.jsonl"), limit=128))
    rows = list(complete(a.tokenizer, TransformersSampler(a), problems, "tiny-v1", 64, (9,), 4))
    prompts = [a.tokenizer.encode(problems[i].question) for i, _, _, _ in rows]
    with torch.no_grad():
        logp, _, mask = b.token_logprobs(prompts, [c.tokens for _, _, c, _ in rows])
    sums = (logp * mask).sum(1).double().numpy()
    d = np.array([c.logprobs.sum(dtype=np.float64) for _, _, c, _ in rows]) - sums
    return {
        "gen": gen,
        "theta": theta,
        "seed": seed,
        "other_share": other_share,
        "steps": [xs, s],
        "kl_mean": round(float(d.mean()), 3),
        "kl_median": round(float(np.median(d)), 3),
        "overlap": round(float(np.minimum(1, np.exp(-d)).mean()), 4),
    }


def alone(root: Path, role: str, seed: int, other_share: float, xs: int, s: int, rate: float) -> dict:
    torch.set_num_threads(1)
    config = Suite.load().resolve("tiny", Suite.load().run(f"alone-{role}-s42"))
    start = made(root, role.removesuffix("_lora"), seed, other_share, xs, s)
    node = replace(
        config.nodes[0], model=str(start), revision=None, device="cpu",
        learning_rate=rate * (5 if role.endswith("_lora") else 1),
    )  # fmt: skip
    test = Dataset(name="tiny", path=str(root / "data/validation.jsonl"), split="test", limit=512)
    config = replace(
        config, seed=seed, nodes=(node,), train=Dataset(name="tiny", path=str(root / "data/train.jsonl")),
        validation=Validation(data=test, every=5, max_new_tokens=64, samples=2),
    )  # fmt: skip
    out = root / f"alone-{role}-{seed}-{rate}"
    train(config, out)
    lines = [json.loads(line)["nodes"][0] for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = json.loads((out / "final.json").read_text())["seconds"]
    curve = [line["validation"]["sampled"]["accuracy"] for line in lines if line["validation"]]
    greedy = [line["validation"]["greedy"]["accuracy"] for line in lines if line["validation"]]
    return {"role": role, "seed": seed, "rate": rate, "sampled": curve, "greedy": greedy, "seconds": seconds}


def kept(root: Path, function, *arguments) -> dict:
    """The result of a call, from an earlier run in the same folder if there is one."""
    path = root / f"{function.__name__}-{'-'.join(map(str, arguments))}.json"
    if not path.exists():
        path.write_text(json.dumps(function(root, *arguments)))
    return json.loads(path.read_text())


def pooled(jobs: int, root: Path, calls: list) -> list:
    """Results of [(function, *arguments)], each shown as it comes."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(kept, root, *call) for call in calls]
        results = []
        for future in futures:
            results.append(future.result())
            print(json.dumps(results[-1]), flush=True)
    return results


def fits(warms: list[dict]) -> bool:
    return all(w["sampled"] >= 0.3 and w["greedy"] <= 0.75 and 0.15 <= w["ood_greedy"] <= 0.6 for w in warms)


def steady(curves: list[list[float]]) -> bool:
    return all(max(curve) - 0.02 <= curve[-1] <= 0.95 for curve in curves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (one thread each)")
    parser.add_argument("--work", type=Path, help="folder that keeps what was made, to go on after a kill")
    arguments = parser.parse_args()
    jobs = arguments.jobs
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.work or Path(scratch)
        make_tokenizer(root / "tok")
        make_data(root / "data", Suite.load().tier("tiny").data)
        tried, distances, chosen = [], [], None
        ways = [way for pair in PAIRS for way in (pair, pair[::-1])]
        for candidate in WARM:
            warms = []
            for seed in SEEDS:
                share, *steps = candidate
                calls = [(warm, role, seed, share, steps["large" in role]) for role in ROLES]
                warms += pooled(jobs, root, calls)
                if not fits(warms):
                    break
            tried += warms
            if not fits(warms):
                continue
            apart = pooled(jobs, root, [(distance, *way, s, *candidate) for s in SEEDS for way in ways])
            distances += apart
            if all(5 <= d["kl_median"] <= 100 for d in apart):
                chosen = candidate
                break
        print(f"warm start that fits (other style, steps of XS and S): {chosen}", flush=True)
        if chosen is None:
            sys.exit("no warm start fits: widen WARM")
        roles = (*ROLES, "base_small_lora", "base_large_lora")
        curves = []
        for rate in RATES:
            curves += pooled(jobs, root, [(alone, r, s, *chosen, rate) for s in SEEDS for r in roles])
            if steady([c["sampled"] for c in curves if c["rate"] == rate]):
                break
        else:
            sys.exit("no learning rate is steady: widen RATES")
    print(f"learning rate: {rate}")
    record.write("tiny_setup", warm=tried, chosen=chosen, distance=distances, alone=curves, rate=rate)


if __name__ == "__main__":
    main()

"""How far the verdicts on the claims can be trusted: coverage, family-wise error and power, simulated.

    python benchmarks/claims_coverage.py

Runs the code that judges the claims (`ftis.study.verdicts`, `ftis.papers.ftis.claims`) on noise of known
shape: that of a run; an effect is a difference of two runs of a seed. About a minute on one core. Writes
benchmarks/results/claims_coverage.json; docs/claims.md quotes it.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import record

from ftis import stats
from ftis.papers.ftis.claims import CLAIMS
from ftis.study.verdicts import ALPHA, MARGIN, Component, decide, decisive
from ftis.suite.suite import Suite

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

# The noise of a run, in units of its standard deviation (collapse: of the runs that don't), mean 0.
NOISE: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t5": lambda rng, shape: rng.standard_t(5, shape) * np.sqrt(3 / 5),
    # Most runs do well and a few lag.
    "skewed": lambda rng, shape: 1 - rng.exponential(size=shape),
    # One run in twenty ends 10 sd lower.
    "collapse": lambda rng, shape: rng.standard_normal(shape) - 10 * (rng.random(shape) < 0.05) + 0.5,
}
SEEDS = (3, 5, 8)


def rate(hits: int, n: int) -> dict[str, float]:
    """A share with the half width of its 95 % interval."""
    share = hits / n
    return {"share": round(share, 4), "plus_minus": round(1.96 * (share * (1 - share) / n) ** 0.5, 4)}


def coverage(rng: np.random.Generator, repeats: int = 10_000) -> dict[str, dict]:
    """Of the paired t-interval, as a claim's row has it; `one-sided` noise is that of one method only, the
    other's being normal with half the sd. The bootstrap is shown for comparison."""
    found = {}
    for name, draw in NOISE.items():
        for kind in ("both", "one-sided"):
            if name == "normal" and kind == "one-sided":
                continue
            for n in SEEDS:
                other = draw(rng, (repeats, n)) if kind == "both" else rng.standard_normal((repeats, n)) / 2
                effects = 0.01 * (draw(rng, (repeats, n)) - other)
                intervals = [Component("above", values=tuple(row)).interval() for row in effects]
                hits = sum(low <= 0 <= high for low, high in intervals)
                found.setdefault(f"{name}, {kind}", {})[n] = rate(hits, repeats)
    n = 5
    samples = rng.standard_normal((2000, n))
    picks = rng.integers(0, n, (1000, n))
    low, high = np.quantile(samples[:, picks].mean(-1), (0.025, 0.975), axis=1)
    found["percentile bootstrap, normal"] = {n: rate(int(((low <= 0) & (high >= 0)).sum()), len(samples))}
    return found


def selected(rng: np.random.Generator, repeats: int = 2000) -> dict[str, dict]:
    """Coverage of the decisive component's interval, plain and simultaneous, five seeds: it is picked by
    the data, among equal ones or among ones of which one is clearly the weakest (every) or strongest
    (some)."""
    found = {}
    for rule, k in (("every", 2), ("every", 12), ("some", 12)):
        for apart in (False, True):
            truth = np.zeros(k)
            truth[0] = (-0.1 if rule == "every" else 0.1) * apart
            hits = np.zeros(2, int)
            for _ in range(repeats):
                effects = truth[:, None] + 0.01 * rng.standard_normal((k, 5))
                parts = [Component("above", name=str(i), values=tuple(row)) for i, row in enumerate(effects)]
                chosen = decisive(rule, parts, "undecided")
                for side, level in enumerate((0.95, 1 - 0.05 / k)):
                    low, high = chosen.interval(level)
                    hits[side] += low <= truth[int(chosen.name)] <= high
            name = f"{rule} of {k}, {'one apart' if apart else 'all equal'}"
            found[name] = {
                "plain": rate(int(hits[0]), repeats),
                "simultaneous": rate(int(hits[1]), repeats),
            }
    return found


def measures() -> list[tuple[str, str, str]]:
    """Every measure that the claims read."""

    class Recorder(dict):
        def get(self, key, default=None):
            self.setdefault(key, {})
            return {0: 0.0}

    seen = Recorder()
    for _, _, _, test in CLAIMS.values():
        test(seen)
    return list(seen)


def no_difference(rng: np.random.Generator, n: int, draw: Draw) -> Iterator[dict]:
    """Tables in which every method is equal, alone included; a seed moves all of its runs alike."""
    keys = measures()
    while True:
        shared, own = draw(rng, (1, n)), draw(rng, (len(keys), n))
        yield {key: dict(enumerate(row)) for key, row in zip(keys, 0.7 + 0.01 * (shared + own), strict=True)}


KINDS = [
    (rule, [part.kind for part in test({key: {0: 0.0} for key in measures()})])
    for _, _, rule, test in CLAIMS.values()
]
# Just not true (holds) and just not false (fails), by kind; and clearly the other way.
EDGE = {
    "holds": {"above": 0, "within": -MARGIN, "ratio": 0, "premise": 0, "level": MARGIN},
    "fails": {"above": MARGIN, "within": -MARGIN, "ratio": 0, "premise": 0.1, "level": MARGIN},
}
CLEAR = {
    "holds": {"above": 0.1, "within": 0.1, "ratio": 0.1, "premise": 0.1, "level": 0},
    "fails": {"above": -0.1, "within": -0.1, "ratio": -0.1, "premise": 0.1, "level": 0.1},
}


def on_the_edge(wrong: str, worst: bool, rng: np.random.Generator, n: int, draw: Draw, noisy: str) -> list:
    """Claims each of which is false by a hair (wrong = holds), or true (fails). Worst: where all components
    must agree, all but one clearly do, so that only that one stands between the claim and the error."""
    found = []
    for rule, kinds in KINDS:
        alone = worst and (rule == "every") == (wrong == "holds")
        edge = max(i for i, kind in enumerate(kinds) if kind != "premise")
        centres = [(CLEAR if alone and i != edge else EDGE)[wrong][kind] for i, kind in enumerate(kinds)]
        shape = (len(kinds), n)
        better, worse = (
            draw(rng, shape) if noisy in ("both", side) else rng.standard_normal(shape) / 2
            for side in ("better", "worse")
        )
        effects = np.array(centres)[:, None] + 0.01 * (better - worse)
        found.append(
            (rule, [Component(kind, values=tuple(row)) for kind, row in zip(kinds, effects, strict=True)])
        )
    return found


def family_wise(rng: np.random.Generator, repeats: int = 800) -> dict[str, dict]:
    """Chance of any false "holds", or any false "fails", among the nine tested claims (at most 2.5 % each is
    aimed at), and without the correction across claims. The noise is of both methods of a comparison, or of
    the one that the claim calls better, or worse, the other's being normal with half the sd."""
    found = {}
    settings = [(noise, n, "both") for noise, n in [("normal", 3), ("normal", 8), *((k, 5) for k in NOISE)]]
    settings += [(noise, 5, side) for noise in ("skewed", "collapse") for side in ("better", "worse")]
    for noise, n, noisy in settings:
        draw = NOISE[noise]
        equal = no_difference(rng, n, draw)
        cases = {} if noisy != "both" else {"no method differs, holds": ("holds", None)}
        for wrong in ("holds", "fails"):
            cases |= {
                f"every claim on its edge, {wrong}": (wrong, False),
                f"one component on its edge, {wrong}": (wrong, True),
            }
        tries = 4 * repeats if (noise, n) == ("normal", 5) else repeats
        for name, (wrong, worst) in cases.items():
            any_wrong = uncorrected = 0
            for _ in range(tries):
                if worst is None:
                    data = next(equal)
                    parts = [(rule, test(data)) for _, _, rule, test in CLAIMS.values()]
                else:
                    parts = on_the_edge(wrong, worst, rng, n, draw, noisy)
                verdicts = decide(parts)
                any_wrong += any(v["verdict"] == wrong for v in verdicts)
                uncorrected += any(v["p" if wrong == "holds" else "p_against"] <= ALPHA for v in verdicts)
            found.setdefault(f"{noise}, {noisy}, {n} seeds", {})[name] = {
                **rate(any_wrong, tries),
                "uncorrected": round(uncorrected / tries, 4),
            }
    return found


def power(rng: np.random.Generator, repeats: int = 2000) -> dict[str, dict]:
    """Chance to show a difference of so many sd: by the noncentral t and as simulated, for a comparison by
    itself and for a claim of one component among nine (Holm's first step)."""
    found = {}
    for n in SEEDS:
        for effect in (1, 2, 3, 5):
            samples = 0.01 * (effect + rng.standard_normal((repeats, n)))
            ps = np.array([Component("above", values=tuple(row)).p for row in samples])
            for name, alpha in (("by itself", ALPHA), ("first of nine claims", ALPHA / len(CLAIMS))):
                found.setdefault(f"{n} seeds, {name}", {})[f"{effect} sd"] = {
                    "formula": round(stats.t_power(n, effect, 1, alpha), 3),
                    "simulated": round(float((ps <= alpha).mean()), 3),
                }
    return found


# T=1 accuracy of the size pair after training, in a try of the tiny models: XS, S.
TRIED = {
    "alone": (0.849, 0.863),
    "nois": (0.778, 0.838),
    "vis": (0.823, 0.848),
    "tis": (0.844, 0.859),
    "ftis": (0.851, 0.854),
}


def verdicts_at(rng: np.random.Generator, repeats: int = 500) -> dict[str, dict]:
    """Verdicts that so many seeds would give on claims 1, 2, 3 and 5 if the size pair were as in that try,
    with a spread of 1 point between runs, the other pairs level, F-TIS 4 points lower at first."""
    keys = measures()
    cells = {cell: f"-{method}-" for method in TRIED for cell, _, _ in keys if f"-{method}-" in cell}
    centre = []
    for cell, role, what in keys:
        value = 0.85 - 0.04 * (what == "early" and "-ftis-" in cell)
        if what == "end" and role in Suite.load().grid.setups["size_base"].nodes:
            method = "alone" if cell.startswith("alone-") else cells.get(cell, "-ftis-").strip("-")
            if method == "alone" or cell.startswith("size_base"):
                value = TRIED[method][role == "base_large"]
        centre.append(value)
    found = {}
    for n in (5, 8, 16):
        counts = {number: {"holds": 0, "fails": 0, "undecided": 0} for number in (1, 2, 3, 5)}
        for _ in range(repeats):
            rows = np.array(centre)[:, None] + 0.01 * rng.standard_normal((len(keys), n))
            data = {key: dict(enumerate(row)) for key, row in zip(keys, rows, strict=True)}
            verdicts = decide([(rule, test(data)) for _, _, rule, test in CLAIMS.values()])
            for number, verdict in zip(CLAIMS, verdicts, strict=True):
                if number in counts:
                    counts[number][verdict["verdict"]] += 1
        found[f"{n} seeds"] = {
            f"claim {number}": {k: round(v / repeats, 3) for k, v in tally.items()}
            for number, tally in counts.items()
        }
    return found


def main() -> None:
    began = time.process_time()
    rng = np.random.default_rng(0)
    results = {}
    for part in (coverage, selected, family_wise, power, verdicts_at):
        results[part.__name__] = part(rng)
        print(f"{part.__name__}: {time.process_time() - began:.0f} CPU s so far", flush=True)
    record.write("claims_coverage", **results, cpu_seconds=round(time.process_time() - began))


if __name__ == "__main__":
    main()

"""An independent, slow reading of the objective: plain loops over completions and tokens, float64.

Written from the description of the paper alone, and sharing no code with `ftis.method.objective`, so that an
error would have to be made twice to stay unseen. Gradients are central differences: `now` is moved, and
what the paper puts under stop-gradient is taken at `held`, the same log-probs left where they were.

`python tests/reference.py` draws the stored rollouts anew (seed 0) and writes tests/golden/objective.json.
"""

import json
import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path

STEP = 1e-5
GOLDEN = Path(__file__).parent / "golden" / "objective.json"


@dataclass(frozen=True)
class Batch:
    """One entry a completion; the log-probs are lists over its tokens, without padding."""

    reward: list[float]
    group: list[int]
    own: list[bool]
    theta: list[list[float]]
    gen: list[list[float]]
    start: list[list[float]]


@dataclass(frozen=True)
class Choice:
    """A method under a reading."""

    weighting: str = "none"
    threshold: float | None = None
    eps: float = 0.2
    cap: float = 2.0
    filter_rule: str = "negative_and_far"
    kl_estimator: str = "gen_theta"
    kl_reduction: str = "sum"
    advantage_scale: str = "std"
    std: str = "sample"
    filtered_denominator: str = "stay"
    filter_scope: str = "all"
    weight_level: str = "token"
    detach_weight: bool = True
    clip: str = "ratio"
    clip_reference: str = "generation"


def advantages(batch: Batch, choice: Choice) -> list[float]:
    """(reward - mean of the group) / its standard deviation; 0 where all rewards are equal."""
    result = []
    for reward, group in zip(batch.reward, batch.group, strict=True):
        rewards = [r for r, g in zip(batch.reward, batch.group, strict=True) if g == group]
        if all(r == rewards[0] for r in rewards):
            result.append(0.0)
            continue
        mean = math.fsum(rewards) / len(rewards)
        squares = math.fsum((r - mean) ** 2 for r in rewards)
        degrees = len(rewards) - 1 if choice.std == "sample" else len(rewards)
        scale = math.sqrt(squares / degrees) if choice.advantage_scale == "std" else 1.0
        result.append((reward - mean) / scale)
    return result


def token_kl(estimator: str, gen: float, theta: float) -> float:
    """One token's estimate of the distance between the policies."""
    d = gen - theta
    if estimator == "gen_theta":
        return d
    if estimator == "theta_gen_literal":
        return -d
    if estimator == "k3_gen_theta":
        return math.exp(-d) + d - 1
    if estimator == "k3_code":
        return math.exp(d) - d - 1
    assert estimator == "is_theta_gen"
    return -d * math.exp(-d)


def is_filtered(batch: Batch, choice: Choice, advantage: float, row: int) -> bool:
    """Whether a completion's update is zeroed."""
    if choice.threshold is None or (choice.filter_scope == "foreign" and batch.own[row]):
        return False
    kl = 0.0
    for gen, theta in zip(batch.gen[row], batch.theta[row], strict=True):
        kl += token_kl(choice.kl_estimator, gen, theta)
    if choice.kl_reduction == "mean":
        kl /= len(batch.theta[row])
    if choice.kl_reduction == "padded_mean":
        kl /= max(len(t) for t, g in zip(batch.theta, batch.group, strict=True) if g == batch.group[row])
    far = kl > choice.threshold
    if choice.filter_rule == "negative_and_far":
        return advantage < 0 and far
    if choice.filter_rule == "nonpositive_and_far":
        return advantage <= 0 and far
    assert choice.filter_rule == "nonpositive_or_far"
    return advantage <= 0 or far


def bound(value: float, eps: float) -> float:
    return min(max(value, 1 - eps), 1 + eps)


def completion_term(choice: Choice, a: float, now: list, held: list, gen: list, start: list) -> float:
    """The maximised mean over one completion's tokens of weight x A.

    now: log-probs that carry the gradient; held: the same, under stop-gradient.
    """
    ppo = choice.clip_reference == "iteration_start"
    base_now, base_held = (start, start) if ppo else (now, held)
    total = 0.0
    for t in range(len(now)):
        # x carries the gradient: pi_theta / sg(pi_theta), or PPO's pi_theta / pi_start
        x = math.exp(now[t] - (start[t] if ppo else held[t]))
        # r = pi_theta / pi_gen, or pi_start / pi_gen
        if choice.weight_level == "token":
            r_now, r_held = math.exp(base_now[t] - gen[t]), math.exp(base_held[t] - gen[t])
        else:
            r_now = r_held = 1.0
            for s in range(len(now)):
                r_now *= math.exp(base_now[s] - gen[s])
                r_held *= math.exp(base_held[s] - gen[s])
        weight = 1.0
        if choice.weighting == "tis":
            weight = min(r_held if choice.detach_weight else r_now, choice.cap)
        if choice.weighting == "vis" and ppo:
            weight = r_held
        if choice.weighting == "vis" and not ppo:
            x = r_now
        if choice.clip == "literal":
            # The printed clip, taken inside a minimum as PPO's is: it kills the gradient for A > 1 + eps
            # and, unlike a bare clip(x A, 1 - eps, 1 + eps), not that of every negative sample as well.
            term = min(x * a, bound(x * a, choice.eps))
        elif ppo or choice.weighting == "vis":
            term = min(x * a, bound(x, choice.eps) * a)
        else:
            term = x * a
        total += weight * term
    return total / len(now)


def loss(batch: Batch, choice: Choice) -> tuple[float, int, list[bool]]:
    """Minus the summed terms, the completions in the denominator, and which ones are filtered."""
    total, count, dropped = 0.0, 0, []
    for row, a in enumerate(advantages(batch, choice)):
        dropped.append(is_filtered(batch, choice, a, row))
        if not dropped[-1]:
            theta = batch.theta[row]
            total -= completion_term(choice, a, theta, theta, batch.gen[row], batch.start[row])
        if not dropped[-1] or choice.filtered_denominator == "stay":
            count += 1
    return total, count, dropped


def gradient(batch: Batch, choice: Choice) -> list[list[float]]:
    """d total / d log-prob of each token, by central differences. The filter is a constant."""
    result = []
    for row, a in enumerate(advantages(batch, choice)):
        theta, slopes = batch.theta[row], []
        for t in range(len(theta)):
            values = []
            for sign in (1, -1):
                moved = list(theta)
                moved[t] += sign * STEP
                values.append(-completion_term(choice, a, moved, theta, batch.gen[row], batch.start[row]))
            slopes.append((values[0] - values[1]) / (2 * STEP))
        result.append([0.0] * len(theta) if is_filtered(batch, choice, a, row) else slopes)
    return result


def random_batch(
    seed: int, groups: int = 4, group_size: int = 4, longest: int = 6, spread: float = 0.6
) -> Batch:
    """Ragged completions of shuffled groups with rewards 0, 0.5 and 1; the last group's are all equal."""
    rng = random.Random(seed)
    rows = [(group, i) for group in range(groups) for i in range(group_size)]
    rng.shuffle(rows)
    reward = [
        1.0 if group == groups - 1 or i == 0 else 0.0 if i == 1 else rng.choice([0.0, 0.5, 1.0])
        for group, i in rows
    ]
    theta = [[-rng.expovariate(1.0) - 0.01 for _ in range(rng.randint(1, longest))] for _ in rows]

    def near(values: list[float]) -> list[float]:
        return [round(v + rng.gauss(0.0, spread), 6) for v in values]

    theta = [[round(v, 6) for v in row] for row in theta]
    own = [rng.random() < 0.5 for _ in rows]
    return Batch(reward, [g for g, _ in rows], own, theta, [near(r) for r in theta], [near(r) for r in theta])


METHODS = {
    "alone": ("none", False),
    "nois": ("none", False),
    "vis": ("vis", False),
    "tis": ("tis", False),
    "fnois": ("none", True),
    "fvis": ("vis", True),
    "ftis": ("tis", True),
}
READINGS = {
    "paper": {},
    "code": {
        "filter_rule": "nonpositive_and_far",
        "kl_estimator": "k3_code",
        "kl_reduction": "padded_mean",
        "advantage_scale": "none",
        "filtered_denominator": "leave",
    },
    "seed": {"filter_rule": "nonpositive_or_far"},
}
# Chosen so that each preset filters some completions of the stored rollouts and keeps others.
GOLDEN_THRESHOLD = 0.1


def write_golden() -> None:
    batch, expected = random_batch(seed=0), {}
    for preset, readings in READINGS.items():
        for method, (weighting, filters) in METHODS.items():
            choice = Choice(weighting, GOLDEN_THRESHOLD if filters else None, **readings)
            total, count, dropped = loss(batch, choice)
            slopes = [s for row in gradient(batch, choice) for s in row]
            expected[f"{preset}/{method}"] = {
                "loss": round(total / count, 9),
                "grad_norm": round(math.sqrt(math.fsum(s * s for s in slopes)) / count, 8),
                "filtered": [row for row, drop in enumerate(dropped) if drop],
            }
    GOLDEN.parent.mkdir(exist_ok=True)
    stored = {"threshold": GOLDEN_THRESHOLD, "batch": asdict(batch), "expected": expected}
    GOLDEN.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()

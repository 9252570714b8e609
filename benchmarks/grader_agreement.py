"""How our grader and others judge the same completions, and where they differ.

    python benchmarks/grader_agreement.py GENERATIONS.jsonl [...]

Reads generations files and prints, for each other grader, the counts of each kind of disagreement with
examples. Others: `math-verify` on the whole completion as it stands; `code`, the reward of the authors'
public repository (its tag format, and math-verify on the tag's text against the gold); `hashes`, a strict
`#### number` matcher. Writes benchmarks/results/grader_agreement.json.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

from ftis.provenance import versions
from ftis.tasks.grading.math_verify_verdict import math_verify_many
from ftis.tasks.grading.verdict import FORMATS, grade_many

TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
HASHES = re.compile(r"#### (-?[0-9.,]+)")


def math_verify(rows: list[dict]) -> list[bool]:
    return [bool(v.accepts) for v in math_verify_many([(r["gold"], r["text"]) for r in rows])]


def code_reward(rows: list[dict]) -> list[bool]:
    tags = [TAG.findall(r["text"]) for r in rows]
    theirs = math_verify_many([(r["gold"], tag[-1].strip() if tag else "") for r, tag in zip(rows, tags)])
    return [
        FORMATS["code"](r["text"]) and bool(tag) and bool(v.accepts) for r, tag, v in zip(rows, tags, theirs)
    ]


def hashes(rows: list[dict]) -> list[bool]:
    found = [HASHES.findall(r["text"]) for r in rows]
    return [
        bool(f) and f[-1].replace(",", "").rstrip(".") == r["gold"].replace(",", "")
        for r, f in zip(rows, found)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="GENERATIONS.jsonl")
    parser.add_argument("--examples", type=int, default=3, help="shown a class (default: %(default)s)")
    parser.add_argument(
        "--most", type=int, default=2000, help="completions of a file, spread evenly (default: %(default)s)"
    )
    arguments = parser.parse_args()
    rows = {}
    for file in arguments.files:
        _, *lines = file.read_text().splitlines()
        for line in lines[:: -(-len(lines) // arguments.most)]:
            row = json.loads(line)
            rows[row["task"], row["gold"], row["text"]] = row  # equal completions count once
    rows = list(rows.values())
    ours = grade_many([(r["text"], r["gold"], r["task"]) for r in rows])
    others = {"math-verify": math_verify, "code": code_reward, "hashes": hashes}
    result = {"completions": len(rows), "by_task": dict(Counter(r["task"] for r in rows)), "graders": {}}
    result["ours"] = {"answer": sum(v.answer for v in ours), "reward": int(sum(v.reward for v in ours))}
    print(f"{len(rows)} distinct completions {result['by_task']}; ours: {result['ours']}")
    for name, judge in others.items():
        classes = defaultdict(list)
        for row, verdict, theirs in zip(rows, ours, judge(rows)):
            mine = bool(verdict.reward) if name == "code" else verdict.answer
            if mine != theirs:
                kind = f"{'they accept, we do not' if theirs else 'we accept, they do not'}: {verdict.reason}"
                classes[kind].append((row, verdict))
        agree = 1 - sum(map(len, classes.values())) / len(rows)
        result["graders"][name] = {"agreement": agree, "classes": {k: len(c) for k, c in classes.items()}}
        print(f"\n{name}: agrees on {agree:.2%}")
        for kind, found in sorted(classes.items(), key=lambda item: -len(item[1])):
            print(f"  {len(found)} x {kind}")
            for row, verdict in found[: arguments.examples]:
                print(
                    f"      gold {row['gold']!r}, extracted {verdict.extracted!r}, ends {row['text'][-90:]!r}"
                )
    result["versions"] = versions(("ftis", "math-verify", "latex2sympy2_extended", "sympy"))
    out = Path(__file__).parent / "results/grader_agreement.json"
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

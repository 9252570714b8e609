"""Copy a tier's tables and figures, or the exact study's, to paper_figures/published, to be committed.

    python workflow/scripts/publish.py tiny
    python workflow/scripts/publish.py tiny --ablations
    python workflow/scripts/publish.py exact

The claims of the tier `tiny` also go into docs/results.md, between the marks <!-- claims --> and <!-- /claims
-->. --ablations puts the tier's ablations beside what is published already, which may be of another commit:
their rows name their own.

Published results stand beside the workflow and are never a rule's output: an existing output with missing
inputs would read as "nothing to be done". Refuses runs of several commits or of changed files, unless --mixed
says that this is known, and any file above 500 KB.
"""

import argparse
import csv
import json
import re
import shutil
import sys
from pathlib import Path

LIMIT = 500_000
PUBLISHED = Path("paper_figures/published")
RESULTS = Path("docs/results.md")
EXACT = PUBLISHED / "exact"
KEPT = (
    "tidy/*.csv",
    "table*.csv",
    "table*.tex",
    "fig*.csv",
    "fig*.png",
    "fig*.pdf",
    "claims*",
    "economics*",
    "ablation-*",
    "provenance.json",
)


def claims_table(path: Path) -> str:
    """claims.csv as a Markdown table; effects of accuracies in points."""
    lines = [
        "| | claim | here | decisive comparison | effect, 95 % interval | greedy | seeds needed |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            points = row["unit"] == "accuracy"
            keys = (
                ("effect", "low_simultaneous", "high_simultaneous") if points else ("effect", "low", "high")
            )
            numbers = [
                f"{100 * float(row[key]) if points else float(row[key]):.1f}" for key in keys if row[key]
            ]
            effect = numbers[0] if numbers else ""
            if len(numbers) == 3:
                effect += (
                    f" [{numbers[1]}, {numbers[2]}]" if points else f" ({numbers[1]} to {numbers[2]} by node)"
                )
            where = ", ".join(part for part in (row["component"], row["setup"], row["role"]) if part)
            cells = (
                row["claim"],
                row["statement"],
                f"**{row['verdict']}**",
                where,
                effect,
                f"{100 * float(row['greedy_effect']):.1f}" if row["greedy_effect"] else "",
                row["needed_seeds"] + (f" ({row['needed_for']})" if row["needed_for"] else ""),
            )
            lines.append(f"| {' | '.join(cells)} |")
            if row["note"]:
                notes.append(f"{row['claim']}: {row['note']}.")
    return "\n".join([*lines, "", f"Notes. {' '.join(notes)}"])


def with_claims(page: str, table: str) -> str:
    """A page's text with the table between its marks."""
    return re.sub(
        r"(<!-- claims -->\n).*?(<!-- /claims -->)",
        lambda m: f"{m[1]}{table}\n{m[2]}",
        page,
        flags=re.DOTALL,
    )


def copied(source: Path, target: Path, patterns: tuple[str, ...], beside: bool = False) -> str:
    """Put the files of `source` in the place of those in `target`, or beside them; says what was copied."""
    files = sorted({path for pattern in patterns for path in source.glob(pattern)})
    for path in files:
        if path.stat().st_size > LIMIT:
            sys.exit(
                f"{path}: {path.stat().st_size:,} bytes are more than the {LIMIT:,} that may be committed"
            )
    if not beside:
        shutil.rmtree(target, ignore_errors=True)
    for path in files:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return f"{target}: {len(files)} files, {sum(p.stat().st_size for p in files):,} bytes"


def publish_exact(source: Path, changed: bool) -> str:
    if not (source / "provenance.json").exists():
        sys.exit(f"{source}/provenance.json: no such file; run `ftis job exact --out {source}`")
    git = json.loads((source / "provenance.json").read_text())["git"] or {}
    if (not git or git["dirty"]) and not changed:
        sys.exit(
            f"{source} was made by files that no commit has; make it again from a clean checkout, or say "
            f"--mixed"
        )
    said = copied(source, EXACT, ("*.csv", "*.png", "*.pdf", "provenance.json"))
    (EXACT / "README.md").write_text(
        f"The exact study, as `ftis job exact` made it at commit {git.get('commit', 'none')}. docs/exact.md "
        f"says what it shows; a "
        "test computes `exact_findings.csv` from the tables.\n"
    )
    return said


def publish_tier(tier: str, source: Path, mixed: bool) -> str:
    target = PUBLISHED / tier
    if not (source / "provenance.json").exists():
        sys.exit(f"{source}/provenance.json: no such file; run `snakemake -c2 --config tier={tier}`")
    facts = json.loads((source / "provenance.json").read_text())
    if (";" in facts["commit"] or "changes" in facts["commit"]) and not mixed:
        sys.exit(f"the runs are of {facts['commit']}; train them at one commit, or say --mixed")
    said = copied(source, target, KEPT)
    (target / "README.md").write_text(
        f"Results of the tier `{tier}`, as `{facts['command']}` made them at commit {facts['commit']} (seeds "
        f"{facts['seeds']}; {facts['processor']}; torch {facts['torch']}). `tidy/` holds what the tables "
        f"and claims are "
        "computed from (columns: `ftis/study/tidy.py`); a test recomputes them, and claims and economics "
        "are made anew from them "
        "where their code has changed since. An ablation's rows name their own commit and "
        f"processor. All of it in one page:\n\n    ftis report --tier {tier} --artefacts {target} --exact "
        f"{EXACT} --out report.html\n"
    )
    if tier == "tiny":  # the page is about this one
        RESULTS.write_text(with_claims(RESULTS.read_text(), claims_table(target / "claims.csv")))
    return said


def publish_ablations(tier: str, source: Path, mixed: bool) -> str:
    tables = sorted(source.glob("ablation-*.csv"))
    if not tables:
        sys.exit(f"{source}: no ablations; run `snakemake -c2 --config tier={tier} ablations=all`")
    for path in tables:
        with open(path, newline="") as file:
            commits = {row["commit"] for row in csv.DictReader(file)}
        if (len(commits) > 1 or any(not c or ";" in c or "+" in c for c in commits)) and not mixed:
            sys.exit(
                f"{path}: runs of {'; '.join(sorted(commits))}; train them at one commit, or say --mixed"
            )
    return copied(source, PUBLISHED / tier, ("ablation-*",), beside=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="TIER|exact")
    parser.add_argument("--root", type=Path, default=Path("paper_figures"), help="(default: %(default)s)")
    parser.add_argument(
        "--mixed", action="store_true", help="publish runs of several commits or changed files"
    )
    parser.add_argument(
        "--ablations", action="store_true", help="the tier's ablations only, beside what is published"
    )
    arguments = parser.parse_args()
    source = arguments.root / arguments.name
    if arguments.name == "exact":
        print(publish_exact(source, arguments.mixed))
    else:
        publish = publish_ablations if arguments.ablations else publish_tier
        print(publish(arguments.name, source, arguments.mixed))


if __name__ == "__main__":
    main()

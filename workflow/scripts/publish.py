"""Copy a tier's tables and figures to paper_figures/published/TIER, to be committed.

    python workflow/scripts/publish.py tiny

The claims also go into README.md, between the marks <!-- claims --> and <!-- /claims -->.

Published results stand beside the workflow and are never a rule's output: an existing output with missing inputs
would read as "nothing to be done". Refuses runs of several commits or of changed files, unless --mixed says that
this is known, and any file above 500 KB.
"""

import argparse
import csv
import json
import re
import shutil
import sys
from pathlib import Path

LIMIT = 500_000
KEPT = (
    "tidy/*.csv", "table*.csv", "table*.tex", "fig*.csv", "fig*.png", "fig*.pdf", "claims*", "economics*", "ablation-*",
    "provenance.json",
)  # fmt: skip


def claims_table(path: Path) -> str:
    """claims.csv as a Markdown table; effects of accuracies in points."""
    lines = [
        "| | claim | here | decisive comparison | effect, 95 % interval | seeds needed |",
        "|---|---|---|---|---|---|",
    ]
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            scale = 100 if row["unit"] == "accuracy" else 1
            numbers = [f"{scale * float(row[key]):.1f}" for key in ("effect", "low", "high") if row[key]]
            effect = (
                numbers[0] + (f" [{numbers[1]}, {numbers[2]}]" if len(numbers) == 3 else "")
                if numbers
                else ""
            )
            where = ", ".join(part for part in (row["component"], row["setup"], row["role"]) if part)
            cells = (
                row["claim"],
                row["statement"],
                f"**{row['verdict']}**",
                where,
                effect,
                row["needed_seeds"],
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_claims(readme: str, table: str) -> str:
    """README's text with the table between its marks."""
    return re.sub(
        r"(<!-- claims -->\n).*?(<!-- /claims -->)",
        lambda m: f"{m[1]}{table}\n{m[2]}",
        readme,
        flags=re.DOTALL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tier")
    parser.add_argument("--root", type=Path, default=Path("paper_figures"), help="(default: %(default)s)")
    parser.add_argument(
        "--mixed", action="store_true", help="publish runs of several commits or changed files"
    )
    arguments = parser.parse_args()
    source, target = arguments.root / arguments.tier, Path("paper_figures/published") / arguments.tier
    files = sorted({path for pattern in KEPT for path in source.glob(pattern)})
    if not (source / "provenance.json").exists():
        sys.exit(
            f"{source}/provenance.json: no such file; run `snakemake -c2 --config tier={arguments.tier}`"
        )
    facts = json.loads((source / "provenance.json").read_text())
    if (";" in facts["commit"] or "changes" in facts["commit"]) and not arguments.mixed:
        sys.exit(f"the runs are of {facts['commit']}; train them at one commit, or say --mixed")
    for path in files:
        if path.stat().st_size > LIMIT:
            sys.exit(
                f"{path}: {path.stat().st_size:,} bytes are more than the {LIMIT:,} that may be committed"
            )
    shutil.rmtree(target, ignore_errors=True)
    for path in files:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    (target / "README.md").write_text(
        f"Results of the tier `{arguments.tier}`, as `{facts['command']}` made them at commit {facts['commit']} "
        f"(seeds {facts['seeds']}; {facts['processor']}; torch {facts['torch']}). `tidy/` holds what the tables and "
        "claims are computed from (columns: `ftis/tidy.py`); a test recomputes them. All of it in one page:\n\n"
        f"    ftis report --tier {arguments.tier} --artefacts {target} --out report.html\n"
    )
    readme = Path("README.md")
    readme.write_text(with_claims(readme.read_text(), claims_table(target / "claims.csv")))
    print(f"{target}: {len(files)} files, {sum(p.stat().st_size for p in files):,} bytes")


if __name__ == "__main__":
    main()

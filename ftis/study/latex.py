"""Tables as LaTeX."""

from __future__ import annotations

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escape(text: object) -> str:
    """Text for LaTeX: every character that means something to it is spelt out."""
    return "".join(_ESCAPES.get(character, character) for character in str(text))


def latex_table(caption: str, label: str, columns: str, head: list[str], body: list[str], size: str) -> str:
    """A complete table environment in booktabs style; `caption` is plain text, the rest LaTeX."""
    return "\n".join(
        [
            r"% Needs \usepackage{booktabs}. Written by ftis; edits are lost.",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{tab:{label}}}",
            size,
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )

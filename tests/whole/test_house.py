"""What the house promises of itself: sizes, and what `import ftis` costs. Which room imports which is in
`make lint`."""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLANK = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def sources(*rooms):
    return [path for room in rooms for path in sorted((ROOT / "ftis" / room).rglob("*.py"))]


def lines(path):
    return len(path.read_text().splitlines())


CORE = [
    path
    for path in sources("method", "model", "swarm")
    if path.stem != "decode" and path.parent.name != "vllm"
]


def code_lines(text):
    """Lines with code on them: without blank lines, comments and docstrings (those of fields, too)."""
    said = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            said.update(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    filled = {n for t in tokens if t.type not in BLANK for n in range(t.start[0], t.end[0] + 1)}
    return len(filled - said)


def test_lines_of_code_are_counted_without_what_is_said_about_them():
    text = '"""A module.\n\nMore.\n"""\n\nx = 1  # why\n# alone\n\ndef f(a,\n      b):\n    """Doc."""\n    return """two\nlines"""\n'
    assert code_lines(text) == 5


def test_no_file_is_long():
    """400 lines, said and done together; 300 in the core."""
    assert {str(path): n for path in sources(".") if (n := lines(path)) > 400} == {}
    assert {str(path): n for path in CORE if (n := lines(path)) > 300} == {}


def test_the_core_can_be_read_at_one_sitting():
    """At most 2,500 lines of code. Its docstrings, comments and blank lines come on top: `wc -l` says
    nearly 3,900."""
    assert sum(code_lines(path.read_text()) for path in CORE) <= 2500


COST = """
import sys, time
start = time.process_time()
import ftis
took = time.process_time() - start
names = dir(ftis)
assert took < 0.3, took
heavy = {"torch", "numpy", "pandas", "pydantic", "transformers", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_it_costs_nothing():
    done = subprocess.run([sys.executable, "-c", COST], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_face_is_there_and_documented():
    import ftis

    assert set(ftis.__all__) == set(ftis._HOME)
    for name in ftis.__all__:
        value = getattr(ftis, name)
        assert isinstance(value, dict) or value.__doc__, name

"""What is shown of how far a run is."""

import re

from ftis.runs.progress import Progress


def test_a_log_gets_a_line_an_iteration(capsys):
    with Progress("pair", 50, 10) as progress:
        progress.show(11, {"XS": 0.5, "S": 0.25})
        progress.show(11, {"XS": 0.5, "S": 0.25})  # nothing new
        progress.show(12, {"XS": 1.0, "S": 0.0})
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d+\.\d s", "0.0 s", line) for line in lines] == [
        "pair: iteration 11/50, 0.0 s, XS: reward 0.50, S: reward 0.25",
        "pair: iteration 12/50, 0.0 s, XS: reward 1.00, S: reward 0.00",
    ]


def test_a_run_that_is_taken_up_says_nothing_of_what_was_done_before(capsys):
    """A launcher learns from its nodes how much that is."""
    with Progress("pair", 50) as progress:
        progress.show(10, {"XS": 0.0})
        assert capsys.readouterr().err == ""
        progress.show(11, {"XS": 0.5})
    assert "iteration 11/50" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("pair", 4, 1) as progress:
        progress.show(2, {"XS": 0.5})
    said = capsys.readouterr().err
    assert "\r" in said and "2/4" in said and "XS: reward 0.50" in said and "iteration" not in said

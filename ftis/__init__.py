"""ftis: reproduction and benchmark suite for F-TIS (arXiv 2605.22537)."""

__version__ = "0.1.0"

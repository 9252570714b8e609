"""Fetching from a hub, and working from what was fetched: a server that answers as the hub does, then
none."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftis.errors import UserError
from ftis.suite import fetch
from ftis.suite.suite import Suite
from ftis.tasks.problems import Dataset, fetched_file, load_problems

ROOT = Path(__file__).parents[2]
MODEL, REVISION = "somebody/tiny", "8faed761d45a263340a0528343f099c05c9a4323"


@pytest.fixture
def hub(tmp_path):
    """Address of a server with one model, and the list of files that were asked for."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    files = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    files |= {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "notes.md": b"not needed"}
    asked = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith(f"/api/models/{MODEL}/tree"):
                listed = [
                    {"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in files.items()
                ]
                return self.answer(json.dumps(listed).encode())
            if self.path.startswith(f"/api/models/{MODEL}"):
                listed = {"id": MODEL, "sha": REVISION, "siblings": [{"rfilename": name} for name in files]}
                return self.answer(json.dumps(listed).encode())
            name = self.path.removeprefix(f"/{MODEL}/resolve/{REVISION}/")
            if name not in files:
                return self.send_error(404)
            asked.append(name)
            return self.answer(files[name])

        do_HEAD = do_GET

        def answer(self, body):
            self.send_response(200)
            for header, value in {
                "Content-Length": len(body),
                "Content-Type": "application/json",
                "ETag": hashlib.sha256(body).hexdigest(),
                "X-Repo-Commit": REVISION,
            }.items():
                self.send_header(header, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def python(program, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FTIS_"))} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_fetched_model_loads_without_a_network(hub, tmp_path):
    address, asked = hub
    program = f"""
from ftis.hub import has_model, load_model
print(has_model("{MODEL}", "{REVISION}"))
load_model("{MODEL}", "{REVISION}")
print(has_model("{MODEL}", "{REVISION}"), has_model("{MODEL}", "0" * 40))
"""
    assert python(program, HF_ENDPOINT=address, HF_HOME=str(tmp_path)) == ["False", "True", "False"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(asked) and "notes.md" not in asked
    program = f"""
from ftis.model.loading import _load_model
print(sum(p.numel() for p in _load_model("{MODEL}", "{REVISION}").parameters()) > 0)
"""
    assert python(program, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) == ["True"]


def test_a_model_lacks_a_shard(hub, tmp_path):
    """An interrupted download is not a model."""
    address, _ = hub
    program = f"""
from pathlib import Path
from ftis.hub import has_model, load_model
folder = Path(load_model("{MODEL}", "{REVISION}"))
(folder / "model.safetensors").rename(folder / "model-1.safetensors")
index = folder / "model.safetensors.index.json"
for shards in (["model-1.safetensors"], ["model-1.safetensors", "model-2.safetensors"]):
    index.write_text('{{"weight_map": {{%s}}}}' % ", ".join(f'"{{s}}": "{{s}}"' for s in shards))
    print(has_model("{MODEL}", "{REVISION}"))
"""
    assert python(program, HF_ENDPOINT=address, HF_HOME=str(tmp_path)) == ["True", "False"]


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"]
)
def test_a_model_lacks_a_file(hub, tmp_path, file):
    address, _ = hub
    program = f"""
from pathlib import Path
from ftis.hub import has_model, load_model
folder = Path(load_model("{MODEL}", "{REVISION}"))
(folder / "{file}").unlink()
print(has_model("{MODEL}", "{REVISION}"))
"""
    assert python(program, HF_ENDPOINT=address, HF_HOME=str(tmp_path)) == ["False"]
    program = f"""
from ftis.errors import UserError
from ftis.hub import load_model
try:
    load_model("{MODEL}", "{REVISION}")
except UserError as error:
    print("missing" in str(error) or "no local copy" in str(error))
"""
    assert python(program, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) == ["True"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("FTIS_DATA", "FTIS_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_problems_from_the_hub_are_kept_for_later(cache, monkeypatch):
    test = Dataset(name="gsm8k", split="test")
    with pytest.raises(UserError, match="dataset gsm8k .*: no local copy"):
        load_problems(test)
    rows = [{"question": f"q{i}", "answer": f"so\n#### {i}"} for i in range(3)]
    with monkeypatch.context() as there:
        there.setattr("ftis.tasks.problems.require_hub", lambda *_: None)
        there.setattr("datasets.load_dataset", lambda *_, **__: rows)
        first = load_problems(test)
    assert [p.gold for p in first] == ["0", "1", "2"]
    assert load_problems(test) == first, "without the hub"
    assert fetched_file(test).is_relative_to(cache)


def test_what_is_missing_is_named_with_the_way_out(cache, monkeypatch, tmp_path):
    fetch.require_fetched(["smoke", "tiny"])  # they take nothing from the hub
    with pytest.raises(UserError) as error:
        fetch.require_fetched(["small"])
    message = str(error.value)
    for part in ("SmolLM2-135M", "gsm8k (train)", "math500 (test)", "fetch --config tier=small", str(cache)):
        assert part in message
    # Local copies of both need nothing.
    for file in ("gsm8k/train.jsonl", "gsm8k/test.jsonl", "math500/test.jsonl"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setenv("FTIS_DATA", str(tmp_path))
    models = {m.model: str(tmp_path) for m in Suite.load().tier("small").models.values() if m.model}
    monkeypatch.setenv("FTIS_MODELS", json.dumps(models))
    fetch.require_fetched(["small"])

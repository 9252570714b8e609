"""A pair with F-TIS and the same model alone, trained in memory: no folder, no lock, nothing left behind.

python examples/train_in_memory.py        # under a minute on one CPU core, and another to make the models
once
"""

from make_models import make_models

import ftis


def main() -> None:
    make_models()
    for settings in ("examples/pair.yaml", "examples/alone.yaml"):
        run = ftis.load_run(settings)
        for line in ftis.Swarm(run):
            nodes = "   ".join(f"{node.name} {node.reward:.2f}" for node in line.nodes)
            print(f"{run.name}, iteration {line.step}: reward {nodes}")
        for node in line.nodes:
            print(
                f"{run.name}, {node.name}: {node.validation['greedy']['accuracy']:.0%} of new problems right"
            )


if __name__ == "__main__":
    main()

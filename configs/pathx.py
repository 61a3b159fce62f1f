"""Path-X: Pathfinder on 128 × 128 pixels, 16,384 tokens; the data are generated.

    python run_lra.py --config=configs/pathx.py                               # Nyström, 64 landmarks
    python run_lra.py --config=configs/pathx.py --config.data.dir=FOLDER      # files of the release

The same as `configs/pathfinder.py:nystrom,resolution=128`, gradients clipped as in the official run.

Source: the model of Xiong et al. 2021 (arXiv:2102.03902), who have no Path-X, on Pathfinder's hundred
passes; batch 64 and a gradient norm of at most 1 from the official code (google-research/long-range-arena,
`image/configs/pathfinder128`).
Expected: no model of Tay et al. 2020 (arXiv:2011.04006) did better than chance, 50 %.
"""

from ml_collections import ConfigDict

from configs import pathfinder


def get_config(argument: str = "nystrom") -> ConfigDict:
    """The run; `argument` chooses the attention and the difficulty."""
    config = pathfinder.get_config(f"{argument},resolution=128")
    config.optimizer.clip_norm = 1.0
    return config

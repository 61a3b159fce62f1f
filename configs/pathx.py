"""Path-X: Pathfinder on 128 × 128 pixels, 16,384 tokens. The data are generated.

    python run_lra.py --config=configs/pathx.py                               # Nyström, 64 landmarks
    python run_lra.py --config=configs/pathx.py --config.data.dir=FOLDER      # files of the release
    python run_lra.py --config=configs/pathx.py:nystrom,recipe=fast           # a smaller budget

The same as `configs/pathfinder.py:nystrom,resolution=128`, with gradients clipped as in the official run.

Source: the model of Xiong et al. 2021 (arXiv:2102.03902), who do not evaluate Path-X, trained for 100 epochs
as on Pathfinder; batch size 64 and gradients clipped to norm 1 as in the official code
(google-research/long-range-arena, `image/configs/pathfinder128`).
recipe=fast: as in `configs/pathfinder.py`, with a convolution of width 259. Examples have 16 times as many
tokens as those of 32 × 32 pixels, so a run on one CPU core would take
about two days (16 times as long as Pathfinder, not measured). With the paper's budget it would take weeks.
Expected: no model of Tay et al. 2020 (arXiv:2011.04006) was better than chance, 50 %.
"""

from ml_collections import ConfigDict

from configs import common, pathfinder


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the config; `argument` selects the attention and the difficulty."""
    argument, _ = common.extract_options(argument, {"resolution": (128,)})
    config = pathfinder.get_config(f"{argument},resolution=128")
    config.optimizer.clip_norm = 1.0
    return config

"""BERT-style pretraining on your text: masked words and sentence order.

    python run_pretrain.py --config=configs/pretrain.py --config.data.dir=FOLDER       # BERT-small
    python run_pretrain.py --config=configs/pretrain.py:base,max_len=4096 …
    python run_pretrain.py --config=configs/pretrain.py:demo,attention=linear …
    python run_pretrain.py --config=configs/pretrain.py:checkpoint --config.init.checkpoint=BERT …

Source: Xiong et al. 2021 (arXiv:2102.03902), section 4.1: batch size 256, AdamW with peak rate 1e-4, β 0.9
and 0.999, weight decay 0.01, 10,000 steps of warm-up, linear decay; 500,000 steps for BERT-base, 100,000 for
BERT-small; 64 landmarks. Convolution of width 33 at 512 tokens and 65 at 4,096, as in the authors' configs
(`nystrom-512/config.json` at 5689313, and the deleted config for 4,096 tokens).
Differs: the authors' code uses OneCycleLR, which cycles β₁ by default, and masks single tokens
(`--config.objective.whole_words=False`). As in the authors' code, weight decay applies to
all parameters.
Data: documents from text files, JSON lines or a prepared tensorflow-datasets dataset. A WordPiece vocabulary
is trained on them unless data.tokenizer is set. The paper uses BookCorpus and English Wikipedia, which this
project does not download.
`:demo` fits on a laptop: 4 layers of width 128, 128 tokens, 16 landmarks. `:checkpoint` starts from a model
folder of this project, or of BERT, RoBERTa or Nyströmformer; `,attention=nystrom` replaces its attention.
"""

from ml_collections import ConfigDict

from configs import language
from configs.common import defaults, parse
from language.config import ObjectiveConfig
from language.corpus import CorpusConfig
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training.config import EvalConfig, OptimizerConfig, TrainConfig

# Source: BERT-base of Devlin et al. 2019, BERT-small of Turc et al. 2019.
SIZES: dict[str, dict[str, int]] = {
    "demo": {"num_layers": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 512},
    "small": {"num_layers": 4, "embed_dim": 512, "num_heads": 8, "mlp_dim": 2048},
    "base": {"num_layers": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072},
    "checkpoint": {},  # the sizes of init.checkpoint
}
STEPS = {"demo": 3_000, "small": 100_000, "base": 500_000, "checkpoint": 100_000}
WARMUP = {"demo": 300}


def get_config(argument: str = "small") -> ConfigDict:
    """Returns the config for `SIZE[,attention=NAME][,max_len=L][,option=value …]`."""
    size, options = parse(argument)
    if size not in SIZES:
        raise ValueError(f"Unknown size {size!r}{nearest(size, SIZES)}")
    demo = size == "demo"
    max_len = language.max_len(options, 128 if demo else 512)
    attention = options.pop("attention", "" if size == "checkpoint" else "nystrom")
    if attention == "nystrom" and size != "checkpoint":
        if demo:
            options.setdefault("num_landmarks", "16")
            options.setdefault("conv_kernel_size", "17")
        elif max_len > 2048:
            options.setdefault("conv_kernel_size", "65")
    config = language.base()
    config.data = {**defaults(CorpusConfig), "dir": "", "max_len": max_len}
    if demo:
        config.data.vocab_size = 8_192
    config.objective = defaults(ObjectiveConfig)
    config.model = {**language.MODEL, **SIZES[size]}
    config.attention = language.attention(attention, options, of_checkpoint=size == "checkpoint")
    config.optimizer = {
        **defaults(OptimizerConfig),
        "learning_rate": 1e-3 if demo else 1e-4,
        "schedule": "linear",
        "warmup_steps": WARMUP.get(size, 10_000),
        "weight_decay": 0.01,
    }
    del config.optimizer.method  # only AdamW is supported
    config.train = {
        **defaults(TrainConfig),
        "total_steps": STEPS[size],
        "batch_size": 64 if demo else 256,
        "budget_steps": STEPS[size],
    }
    config.eval = {
        **defaults(EvalConfig),
        "every_steps": 500 if demo else 5_000,
        "max_examples": 0 if demo else 50_000,
    }
    return config

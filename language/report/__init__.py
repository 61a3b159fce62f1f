"""Report on pretraining and fine-tuning: `python -m language.report`. Does not import jax."""

"""Report of pretraining and fine-tuning: `python -m language.report`. No jax."""

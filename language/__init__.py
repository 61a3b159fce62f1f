"""The language model: corpora, tokenizers, pretraining and GLUE; runs from a clone of the repository."""

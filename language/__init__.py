"""The language model: corpora, tokenizers, pretraining and GLUE. It runs from a clone of the repository."""

"""The language model: corpora, tokenizers, pretraining, GLUE; stands on the library, runs from a clone."""

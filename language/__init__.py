"""Language models: corpora, tokenizers, pretraining and GLUE. Runs only from a clone of the repository."""

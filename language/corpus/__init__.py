"""Corpora for pretraining: from text to pairs of token sequences. Imports no jax."""

from language.corpus.data import Corpus, CorpusConfig, load
from language.corpus.pairs import Pairs
from language.corpus.pieces import SplitStatistics

__all__ = ["Corpus", "CorpusConfig", "Pairs", "SplitStatistics", "load"]

"""Learns a WordPiece vocabulary from word counts by byte-pair encoding.

The most frequent pair of adjacent pieces is repeatedly merged into a new piece. A WordPiece tokenizer
then matches pieces greedily, the longest first.

Source: `tokenizers.trainers.WordPieceTrainer` (huggingface/tokenizers, models/bpe/trainer.rs).
Differs: the vocabulary is deterministic. The library numbers letters in the order of a hash table,
which differs between processes, and breaks ties between pairs by these numbers. In this module a pair may
also occur more than 2^31 times, letters that are very rare are left out (see `_RARE`), and pairs that occur
once are not merged.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

PREFIX = "##"  # first characters of a piece that continues a word

# The rarest letters, up to this fraction of the text, are dropped. Words with these letters are unknown.
_RARE = 1e-4


def learn(counts: Mapping[str, int], vocab_size: int, first: Sequence[str]) -> list[str]:
    """Returns the vocabulary: special tokens (`first`), letters, and longer pieces in order of merging.

    The result has fewer than `vocab_size` entries if no pair occurs more than once.
    """
    letters = _letters(counts)
    words = [word for word in counts if letters.issuperset(word)]
    # Ties between pairs are broken by the index in `symbols`, smaller first.
    symbols = sorted(letters) + sorted({PREFIX + c for word in words for c in word[1:]})
    if vocab_size < len(first) + len(symbols):
        raise ValueError(
            f"A vocabulary of {vocab_size:,} tokens is too small for this text: {len(first)} special"
            f" tokens and {len(symbols):,} for letters need {len(first) + len(symbols):,}. Raise"
            " data.vocab_size."
        )
    return [
        *first,
        *_merged(words, [counts[word] for word in words], symbols, vocab_size - len(first)),
    ]


def _letters(counts: Mapping[str, int]) -> set[str]:
    """Returns the letters of the words, without the rarest letters (a fraction `_RARE` of the text)."""
    occurrences: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    rare = _RARE * occurrences.total()
    kept = set(occurrences)
    for character, count in sorted(occurrences.items(), key=lambda item: (item[1], item[0])):
        rare -= count
        if rare < 0:
            break
        kept.remove(character)
    return kept


def _merged(
    words: Iterable[str], counts: Sequence[int], symbols: list[str], size: int
) -> list[str]:
    """Returns `symbols` and the pieces merged from them, at most `size` in total.

    A word is stored as a string with one character per piece, `chr(i)` for piece i. A pair is then a
    string of two characters, which `str.replace` merges in a word.
    """
    pieces = list(symbols)
    numbers = {piece: chr(i) for i, piece in enumerate(pieces)}
    spelled = [numbers[word[0]] + "".join(numbers[PREFIX + c] for c in word[1:]) for word in words]
    occurrences: defaultdict[str, int] = defaultdict(int)
    holders: defaultdict[str, list[int]] = defaultdict(list)  # words by pair; may be outdated
    for row, (word, count) in enumerate(zip(spelled, counts, strict=True)):
        for pair in map("".join, pairwise(word)):
            occurrences[pair] += count
            holders[pair].append(row)
    queue = [(-count, pair) for pair, count in occurrences.items()]
    heapq.heapify(queue)
    while queue and len(pieces) < size:
        count, pair = heapq.heappop(queue)
        if -count != occurrences[pair]:  # outdated entry of the queue
            if -count > occurrences[pair] > 0:
                heapq.heappush(queue, (-occurrences[pair], pair))
            continue
        if -count < 2:
            break
        left, right = (pieces[ord(number)] for number in pair)
        piece = left + right.removeprefix(PREFIX)
        if piece not in numbers:  # a word may contain PREFIX as text
            numbers[piece] = chr(len(pieces))
            pieces.append(piece)
        merged = numbers[piece]
        grown = set()
        for row in holders.pop(pair):
            before, count = spelled[row], counts[row]
            after = before.replace(pair, merged)
            if after == before:
                continue
            spelled[row] = after
            for old in map("".join, pairwise(before)):
                occurrences[old] -= count
            for new in map("".join, pairwise(after)):
                occurrences[new] += count
                if merged in new:
                    holders[new].append(row)
                    grown.add(new)
        for new in grown:
            heapq.heappush(queue, (-occurrences[new], new))
    return pieces

"""Learns a WordPiece vocabulary from words and how often each occurs.

The most frequent pair of neighbouring pieces becomes a piece, over and over: byte-pair encoding,
whose pieces a WordPiece tokenizer then matches greedily, the longest first.

Source: what `tokenizers.trainers.WordPieceTrainer` does (huggingface/tokenizers, models/bpe/trainer.rs).
Differs from it: the same words give the same vocabulary. The library numbers the pieces of one letter
in the order of a hash table, which is another in every process, and of equally frequent pairs takes
the one of smaller numbers. It is also without the library's limit of 2^31 occurrences of a pair.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

PREFIX = "##"  # of a piece that continues a word

# Rarer letters are left out, and words with them are unknown: as a share of all letters of the text.
_RARE = 1e-4


def learn(counts: Mapping[str, int], vocab_size: int, first: Sequence[str]) -> list[str]:
    """The vocabulary: `first`, then letters, then longer pieces in the order in which they are made.

    It is smaller than `vocab_size` where no pair occurs twice any more.

    Args:
      counts: occurrences of every word.
      vocab_size: pieces to make, those of `first` and the letters included.
      first: special tokens.

    Raises:
      ValueError: the letters alone are more than `vocab_size`.
    """
    letters = _letters(counts)
    words = [word for word in counts if letters.issuperset(word)]
    # Pieces are numbered as they come, and of equally frequent pairs the one of smaller numbers is first.
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
    """The characters of the text but the rarest, which together make up `_RARE` of it."""
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
    """`symbols` and the pieces that pairs of them make, `size` in all if there are so many.

    A word is a string with one character a piece: piece number i is `chr(i)`. So a pair is a string
    of two, and to merge it in a word is `str.replace`.
    """
    pieces = list(symbols)
    numbers = {piece: chr(i) for i, piece in enumerate(pieces)}
    spelt = [numbers[word[0]] + "".join(numbers[PREFIX + c] for c in word[1:]) for word in words]
    occurrences: defaultdict[str, int] = defaultdict(int)
    holders: defaultdict[str, list[int]] = defaultdict(list)  # of a pair: words, some no longer
    for row, (word, count) in enumerate(zip(spelt, counts, strict=True)):
        for pair in map("".join, pairwise(word)):
            occurrences[pair] += count
            holders[pair].append(row)
    queue = [(-count, pair) for pair, count in occurrences.items()]
    heapq.heapify(queue)
    while queue and len(pieces) < size:
        count, pair = heapq.heappop(queue)
        if -count != occurrences[pair]:  # fewer by now; more were queued again
            if -count > occurrences[pair] > 0:
                heapq.heappush(queue, (-occurrences[pair], pair))
            continue
        if -count < 2:
            break
        left, right = (pieces[ord(number)] for number in pair)
        piece = left + right.removeprefix(PREFIX)
        if piece not in numbers:  # a word of our marks can spell another piece
            numbers[piece] = chr(len(pieces))
            pieces.append(piece)
        merged = numbers[piece]
        grown = set()
        for row in holders.pop(pair):
            before, count = spelt[row], counts[row]
            after = before.replace(pair, merged)
            if after == before:
                continue
            spelt[row] = after
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

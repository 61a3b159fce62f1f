"""Rule-based sentence splitter for English text, raw or tokenized as in WikiText.

Uncertain boundaries are not split: for training, two halves of one sentence are worse than two sentences
that stay together.
"""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A stop, closing marks directly after it, and closing marks that are separate tokens, as in ` . " `.
# The pattern never begins after another stop and never backtracks, so a long row of dots takes linear time.
_STOP = re.compile(
    r"(?<![.!?…])(?<![.!?…]\ )(?P<stop>[.!?…](?:\ ?[.!?…])*+)(?P<close>[\"'”’»)\]}]*+)"
    r"(?P<apart>(?:\ (?:[\"”»)\]}]|'')(?=\s))*)(?=\s)"
)
_OPENING = "\"'“‘«([{`"
_NEXT = re.compile(rf"[\s{re.escape(_OPENING)}]*(\S*)")
_BEGINS = "$£€#<*•¿¡"  # also begin a sentence, besides letters and digits; < is for <unk>
_ACRONYM = re.compile(r"[^\W\d_]{1,3}(?:\.[^\W\d_]{1,3})+")  # U.S, e.g, Ph.D

# Abbreviations that never end a sentence: before a name, or within a sentence.
_INSIDE = _words(
    "Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Rev Fr St Mt Ft Hon Gov Sen Rep Pres Supt Adm Brig Gen Maj"
    " Col Capt Cmdr Cpl Lt Sgt Pvt mr mrs ms dr prof v vs Vs cf viz lit approx fl e.g i.e E.g I.e"
)
# Abbreviations that do not end a sentence if a number follows.
_NUMBERED = _words(
    "No Nos no nos Vol Vols vol vols p pp P Pp Fig Figs fig figs Art art Sec sec Ch ch Op op Eq eq c ca"
    " ver Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
# Abbreviations that end a sentence only if a word in `_OPENERS` follows.
_EITHER = _words(
    "Inc Ltd Co Corp Bros Jr Sr Esq al Ave Blvd Rd Dept Univ Assn Jan Feb Mar Apr Jun Jul Aug Sep Sept"
    " Oct Nov Dec"
)
_OPENERS = _words(
    "A According After All Also Although An And Another As At Because Before Both But By Despite During"
    " Each Even First For From He Her Here His How However I If In It Its Later Many Meanwhile More Most"
    " My Next No Not Now On Once One Only Other Our Over She Since So Some Soon Still Such That The Their"
    " Then There These They This Those Though Through Thus To Today Two Under Unlike Until Upon We What"
    " When Where While Who Why With You Your"
)


def split(text: str) -> list[str]:
    """Returns the stripped sentences of `text` in order; a line break always ends a sentence."""
    return [sentence for line in text.splitlines() for sentence in _of_line(line)]


def _of_line(line: str) -> list[str]:
    sentences = []
    start = quotes = counted = 0
    cased = line != line.lower()
    for match in _STOP.finditer(line):
        end = match.end()
        if '"' in match["apart"]:
            quotes += line.count('"', counted, match.start("apart"))
            counted = match.start("apart")
            if quotes % 2 == 0:  # no quotation is open: this mark opens the next one
                end = counted
        following = _NEXT.match(line, end)
        assert following is not None  # it also matches an empty string
        if _ends(line, match, following[1], cased):
            sentences.append(line[start:end].strip())
            start = end
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends(line: str, match: re.Match[str], following: str, cased: bool) -> bool:
    """Returns True if the stop, a match of `_STOP`, ends a sentence before the word `following`.

    `following` has no opening marks, and is empty at the end of the line. If `cased`, the line contains
    capital letters, and sentences must begin with a capital letter.
    """
    if not following or (cased and following[0].islower()):
        return False
    if not (following[0].isalnum() or following[0] in _BEGINS):
        return False
    if match["stop"] != ".":
        return True  # !, ?, or an ellipsis
    before = line[max(0, match.start() - 40) : match.start()].split()
    if not before:
        return False
    word = before[-1].lstrip(_OPENING)
    if word in _INSIDE:
        return False
    if word in _NUMBERED and following[0].isdigit():
        return False
    is_opener = following.rstrip(",;:") in _OPENERS
    if word in _EITHER or _ACRONYM.fullmatch(word):
        return is_opener
    is_token = line[match.start() - 1].isspace()
    if len(word) == 1 and word.isupper() and not is_token:
        return False  # an initial; tokenizers keep its full stop attached
    # "1. First" is a list item.
    return not (word.isdecimal() and len(before) == 1 and match.start() < 10)

"""Where sentences end: rules for English, for raw text and for the tokenised text of WikiText.

The rules need no model and no download. In doubt two sentences stay one: a pair of halves of a
sentence would teach more nonsense than a pair that is a sentence short.
"""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A stop, what closes directly behind it, and what closes in tokens of its own, as in ` . " `.
# It begins where no stop is before and never goes back, so a long row of dots costs no more than others.
_STOP = re.compile(
    r"(?<![.!?…])(?<![.!?…]\ )(?P<stop>[.!?…](?:\ ?[.!?…])*+)(?P<close>[\"'”’»)\]}]*+)"
    r"(?P<apart>(?:\ (?:[\"”»)\]}]|'')(?=\s))*)(?=\s)"
)
_OPENING = "\"'“‘«([{`"
_NEXT = re.compile(rf"[\s{re.escape(_OPENING)}]*(\S*)")
_BEGINS = "$£€#<*•¿¡"  # besides letters and digits; < is <unk>
_ACRONYM = re.compile(r"[^\W\d_]{1,3}(?:\.[^\W\d_]{1,3})+")  # U.S, e.g, Ph.D

# Before a name or in mid-sentence; the full stop that follows ends nothing.
_INSIDE = _words(
    "Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Rev Fr St Mt Ft Hon Gov Sen Rep Pres Supt Adm Brig Gen Maj"
    " Col Capt Cmdr Cpl Lt Sgt Pvt mr mrs ms dr prof v vs Vs cf viz lit approx fl e.g i.e E.g I.e"
)
# Before a number.
_NUMBERED = _words(
    "No Nos no nos Vol Vols vol vols p pp P Pp Fig Figs fig figs Art art Sec sec Ch ch Op op Eq eq c ca"
    " ver Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
# May end a sentence; it does if a word of `_OPENERS` follows.
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
    """The sentences of `text`, in order, without the white space around them.

    A line break ends a sentence. Every character but white space is in one of them.
    """
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
            if quotes % 2 == 0:  # no quotation is open, so this mark opens one
                end = counted
        following = _NEXT.match(line, end)
        assert following is not None  # it matches nothing, too
        if _ends(line, match, following[1], cased):
            sentences.append(line[start:end].strip())
            start = end
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends(line: str, match: re.Match[str], following: str, cased: bool) -> bool:
    """Whether the stop ends a sentence before the word `following`.

    Args:
      line: what it stands in.
      match: of `_STOP`.
      following: without what opens before it; "" at the end of the line.
      cased: the line has capital letters, so a small one begins no sentence.
    """
    if not following or (cased and following[0].islower()):
        return False
    if not (following[0].isalnum() or following[0] in _BEGINS):
        return False
    if match["stop"] != ".":
        return True  # ! and ?, and an ellipsis, of which the capital that follows makes an end
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
        return False  # an initial; a tokeniser leaves the full stop with those
    # "1. First" is an item of a list.
    return not (word.isdecimal() and len(before) == 1 and match.start() < 10)

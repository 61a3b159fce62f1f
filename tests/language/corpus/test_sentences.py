import random
import time

import pytest

from language.corpus import sentences

# One sentence a part; | stands where the text is to be split.
CASES = [
    "It rained.| The match was off.",
    "Is it?| Yes!| Go on.",
    "It cost 3.14 dollars. |Then 1,000.50 more.",
    "Mr. Smith met Mrs. O'Neil and Dr. Who in St. Louis.| They left.",
    "He lives in the U.S. Army base.| She does not.",
    "He lives in the U.S.| The base is old.",
    "Fruit, e.g. Apples, and i.e. Pears.| More follows.",
    "J. R. R. Tolkien wrote it.| C. S. Lewis read it.",
    "It opened at 9 a.m. on Monday.| It closed at 5 p.m.| He went home.",
    "Acme Inc. Ltd. sold it.| Acme Inc.| The firm grew.",
    "He fell on Jan. 5 of that year.| It was in Jan.| Then it froze.",
    "See Fig. 3 and No. 7 of vol. 2.| He said no.| Then he said yes.",
    "Wait...| What?| Well… no.| Well…| So be it.",
    "Apples, pears, etc. are fruit.| Nuts, etc.| They are not.",
    '"Go away!" he said.| "Why?" she asked.',
    'He said "no."| Then he left.',
    "He said “no.”| Then he left.",
    "(It was late.)| So he left.| (He ran.)",
    "The end (see above).| [Then more.]| Last.",
    "1. First item.| It has two.",
    "In 1999.| In 2000.| 12 came.",
    "It was 20 °C.| It grew cold.",
    "all is small. |there are no capitals! |who cares?",
    "Ask at example.com. |Then wait.",
    "Brown v. Board of Education was heard.| It was long.",
    # The tokenised text of WikiText.
    "The game was released in 2011 .| It sold 3 @,@ 500 copies , or 1 @.@ 5 a day .| <unk> wrote it .",
    'He said , " Stop . "| Then he left .| " Go , " she said .',
    'He left .| " Come back ! " she cried .| " No . "| So it ended .',
    "It rose ( by 3 ft . ) .| Then ( as always ) it fell .",
    "Mr. Smith met J. R. Smith in the U.S. Navy .| It was , lit . The End .",
    "He waited . . .| Then he ran .",
    "It was the gold @-@ plated plan B .| She had another .",
]


@pytest.mark.parametrize("case", CASES)
def test_splits_sentences_as_a_reader_does(case):
    expected = [sentence.strip() for sentence in case.split("|")]
    assert sentences.split(case.replace("|", " ")) == expected


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n \n", "\u2028"])
def test_a_line_break_ends_a_sentence(ending):
    assert sentences.split(f"History{ending}It began ") == ["History", "It began"]


PARTS = [
    *" .!?…\"'()[]”“’\n\t",
    "\r\n",
    " . ",
    ' " ',
    "...",
    "Mr.",
    "U.S.",
    "e.g.",
    "No.",
    "1",
    "é",
]
PARTS += ["word", "Word", "@-@", "<unk>", "戦場。", "\u00a0", "\u0085"]


def test_no_character_is_lost_added_or_moved():
    texts = ["".join(random.Random(seed).choices(PARTS, k=97)) for seed in range(200)]
    for text in ("", " \n\t\n", "\u00a0", *texts):
        found = sentences.split(text)
        assert "".join("".join(found).split()) == "".join(text.split()), text
        assert all(sentence and sentence == sentence.strip() for sentence in found), text
        assert all("\n" not in sentence for sentence in found), text


@pytest.mark.parametrize("part", [".", ". ", "! ", ' . "', "a. ", "1. ", '" . "', ". A" * 3, "(."])
def test_time_is_linear_in_the_length(part):
    """It takes a hundredth of the limit, and hours if time grows with the square of the length."""
    start = time.perf_counter()
    sentences.split(part * 100_000 + "x")
    assert time.perf_counter() - start < 10

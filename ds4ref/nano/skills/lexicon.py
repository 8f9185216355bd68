"""Words of the skills: short, distinct, each one token of the vocabulary with and without a blank before it."""

from __future__ import annotations

WOMEN = tuple(
    "Ada Ana Cara Dora Ella Eva Gina Hana Ida Jill Kim Lea "
    "Lily Mia Mina Nina Olga Pia Rosa Sara Tina Ulla Vera Zoe".split()
)
MEN = tuple(
    "Ben Bob Carl Dan Ed Finn Fred Hal Ian Ivan Jan Joe Kai Leo Lou Max Ned Noah Otto Paul Rex Sam Tim Walt".split()
)
NAMES = WOMEN + MEN

OBJECTS = tuple(
    "lamp drum kite bell book boot bowl box brush card cart chair clock coat coin comb cup dish doll door fan flag "
    "fork glass glove hat horn jar key knife map mask mat mug nail net oar pan pen pin pipe plate pot ring rope "
    "rug sack scarf shell shoe spoon stone stool sword tent tile toy vase wheel whip wig basket candle bottle".split()
)
PLACES = tuple(
    "house garden market bridge tower hill church harbour mill inn field lake park shop barn cave camp hall".split()
)
COLOURS = tuple("red blue green white black brown grey pink".split())
VERBS = tuple(
    "paint open close wash sell bring find lift count fix draw move pack hide send build cut hold push pull fill clean "
    "mark show".split()
)

TOPICS: dict[str, tuple[str, ...]] = {
    "sea": tuple("wave sand fish boat sail crab gull tide".split()),
    "farm": tuple("cow hen pig hay goat sheep corn horse".split()),
    "kitchen": tuple("stove bread soup salt oven onion butter pepper".split()),
    "forest": tuple("tree moss owl deer fern wolf leaf root".split()),
    "school": tuple("pupil teacher chalk desk lesson exam page ruler".split()),
    "music": tuple("song flute choir tune harp dance note violin".split()),
    "weather": tuple("rain snow wind storm cloud frost fog sun".split()),
    "sport": tuple("ball goal race team match player score runner".split()),
}
TOPIC_WORDS = tuple(word for words in TOPICS.values() for word in words)

TOWN_STARTS = tuple("Kor Vel Mar Tan Bel Dor Lor Sor Ral Nim Gal Hol Pel Fen Zan Wil".split())
TOWN_ENDS = tuple("vale dale mere ford wick stad burg holm".split())
RIVERS = tuple("Alba Brin Cray Drava Esk Frome Ganz Inn Lahn Mole Nida Oder Ruhr Spey Tyne Ure".split())
FOODS = tuple("rice plum pear honey beans eggs cheese nuts".split())

PARAMETERS = tuple("size colour place name count time day speed weight title level item".split())
FLAGS = tuple("loud fast new safe".split())

WORDS = tuple(dict.fromkeys(NAMES + OBJECTS + PLACES + COLOURS + VERBS + (*TOPICS,) + TOPIC_WORDS + FOODS + RIVERS))
"""Every content word; TOWN_STARTS and TOWN_ENDS are halves of words."""

"""The vocabulary of the prose generator: a grammar whose symbols expand to text.

``GRAMMAR`` maps a symbol to its alternatives; ``{symbol}`` inside an alternative is expanded in turn, ``{Symbol}``
with the first letter in upper case. Single words are kept as one blank-separated string per symbol.
"""

from __future__ import annotations

NAMES = (
    "Anselm Bertrade Cassian Dagmar Edda Florian Gwendolin Hadrian Isolde Joachim Katrin Leopold Mirabel Norbert "
    "Ottilie Pascal Quirin Rosalind Severin Theodora Ulrich Valentina Wilhelmina Xaver Yolanda Zacharias Almut Benno "
    "Corinna Detlef Elfriede Ferdinand Gisela Henrik Ingeborg Jasper Klara Ludmila Matthias Nele Oskar Petronella "
    "Reinhold Sibylle Tobias Ursula Viktor Wanda"
).split()

WORDS: dict[str, str] = {
    "noun": (
        "lantern ledger bridge mill clock kettle rope barrel letter candle basket hammer compass window chimney "
        "cupboard drawer bell anchor saddle wheel map cloak ladder bucket mirror notebook parcel violin teapot coin "
        "key shovel telescope almanac blanket boot brush bottle cradle curtain engine fence flag gate glove harness "
        "hinge inkwell jar kite lamp latch loom magnet needle oar paddle pencil pillow plank pulley quill raft ribbon "
        "sack sail scale scarf shelf signpost sledge spade spool stove suitcase table tapestry thimble trunk umbrella "
        "vase vessel wagon whistle workbench wreath"
    ),
    "creature": (
        "heron fox badger otter raven sparrow goat donkey hound cat owl hedgehog swallow trout beetle mule hare "
        "pigeon weasel stork lizard moth cricket ox lamb gander"
    ),
    "trade": (
        "baker carpenter weaver surveyor ferryman printer gardener cooper mason tailor physician teacher blacksmith "
        "shepherd clerk cartographer watchmaker fisherman miller potter apothecary bookbinder stonecutter beekeeper "
        "glassblower messenger archivist innkeeper locksmith navigator translator lamplighter"
    ),
    "place": (
        "harbour orchard market courtyard library cellar chapel meadow quarry workshop attic warehouse vineyard "
        "lighthouse schoolhouse crossroads riverbank pasture greenhouse station monastery observatory bakery archive "
        "tavern granary boathouse cemetery square tower valley forest ridge marsh clearing canal embankment"
    ),
    "town": (
        "Aldersea Birkenfurt Corvane Dunmere Elsterau Farnholt Glimstad Hollerbach Ivenrode Kaltwasser Lindenau "
        "Morwick Nettelstein Osterby Pellworth Quernmoor Ravensund Silberhain Thornegg Ulmenfeld Varnow Westerloh"
    ),
    "adj": (
        "old narrow quiet broken careful heavy bright distant patient wooden silver crooked gentle stubborn empty "
        "curious familiar frozen golden hollow honest humble iron lonely modest muddy painted pale polished proud "
        "rusty shallow sleepy slender solemn steady sturdy tangled tidy uneven unfinished velvet weary weathered "
        "wide worn yellow ancient borrowed brittle cheerful copper dusty faded forgotten generous grey handsome "
        "ordinary peculiar precious reluctant remarkable secret serious splendid sudden thoughtful unexpected"
    ),
    "adv": (
        "slowly quietly carefully suddenly gently patiently reluctantly cheerfully solemnly hurriedly politely "
        "stubbornly thoughtfully absently calmly eagerly faithfully gladly honestly kindly nervously openly proudly "
        "quickly softly steadily sternly tenderly warmly wisely"
    ),
    "did": (
        "carried repaired painted measured polished borrowed examined described remembered hid found returned sold "
        "bought cleaned copied counted covered discovered drew dropped emptied filled followed gathered guarded "
        "inspected lifted loaded mended moved noticed opened packed placed praised promised pulled pushed raised "
        "recorded removed replaced rescued searched sketched studied tested tied traded unpacked watched weighed"
    ),
    "went": (
        "walked hurried wandered travelled climbed returned rode sailed stumbled marched strolled drifted crept ran "
        "turned journeyed rowed"
    ),
    "said": "said answered asked whispered replied muttered called explained insisted laughed repeated wrote sighed",
    "prep": "behind beside under above near inside beyond across along against around below past through",
    "feeling": (
        "hope doubt relief curiosity patience pride sorrow courage gratitude fear delight regret surprise kindness "
        "confidence loneliness comfort impatience tenderness suspicion"
    ),
    "matter": (
        "weather harvest inheritance election journey experiment festival lawsuit drought flood wedding expedition "
        "translation auction famine treaty concert apprenticeship epidemic railway"
    ),
    "season": "spring summer autumn winter",
    "month": "January February March April May June July August September October November December",
    "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "sky": "rain fog snow wind frost thunder hail drizzle sunlight moonlight mist",
    "mood": "patient careful stubborn honest curious generous reluctant cheerful thoughtful modest solemn proud kind",
    "stuff": (
        "flour honey salt timber wool copper parchment candle-wax linen oil barley leather glass clay coal cheese "
        "tar hops flax chalk"
    ),
    "unit": "sacks barrels crates bundles jars baskets bales cartloads",
    "part": "roof door floor wall corner stair gate edge middle far end north side",
}

GRAMMAR: dict[str, tuple[str, ...]] = {
    "thing": ("{noun}", "{adj} {noun}", "{adj} {noun}", "{adj}, {adj} {noun}", "{noun} of the {trade}"),
    "someone": ("{name}", "{name}", "the {trade}", "the {adj} {trade}", "the {trade} from {town}", "{name} of {town}"),
    "where": (
        "{prep} the {place}",
        "{prep} the {adj} {place}",
        "in the {place}",
        "at the {place} of {town}",
        "on the way to {town}",
        "between the {place} and the {place}",
    ),
    "when": (
        "in the {season}",
        "before dawn",
        "after the {matter}",
        "one {weekday} in {month}",
        "at noon",
        "late in the evening",
        "when the {sky} came",
        "for the first time that year",
        "on the {ordinal} day of {month}",
    ),
    "clause": (
        "{someone} {did} the {thing}",
        "{someone} {did} the {thing} {where}",
        "{someone} {adv} {did} the {thing}",
        "{someone} {went} {where}",
        "{someone} {went} {where} and {did} the {thing}",
        "the {creature} {went} {where}",
        "there was {feeling} {where}",
        "nobody in {town} spoke of the {matter}",
    ),
    "because": (
        "because the {sky} had reached {town}",
        "although the {matter} was not yet over",
        "while the {trade} waited {where}",
        "as if the {thing} belonged to the {creature}",
        "since the {thing} had been promised to {someone}",
        "until the {creature} {went} {where}",
    ),
    "sentence": (
        "{Clause}.",
        "{Clause}.",
        "{Clause}, {because}.",
        "{When}, {clause}.",
        "{When}, {clause}, and {clause}.",
        "{Clause}; {clause}.",
        "{Because}, {clause}.",
        "The {thing} stood {where}, and its {part} was covered with {stuff}.",
        "It took {number} days to bring {number} {unit} of {stuff} from {town} to {town}.",
        "In the year {year}, the {matter} cost the {trade} {count} crowns.",
        "{Someone} kept {count} {unit} of {stuff} {where}: {stuff}, {stuff} and a little {stuff}.",
        "There was more {feeling} than {feeling} in the letter that {someone} sent to {town}.",
        "Nothing about the {thing} seemed {adj}, not even its {part}.",
        "What {name} wanted was a {adj} {noun}; what {name} got was a {noun} without a {part}.",
        "Who {did} the {thing}?",
        "The {place} smelled of {stuff} and {stuff}, as it did every {season}.",
        "{Name} had learned from the {trade} that a {adj} {noun} is worth more than {number} {adj} ones.",
    ),
    "speech": (
        '"I have seen the {thing} {where}," {said} {name}.',
        '"We cannot leave before {weekday}," {said} {name}. "The {matter} will decide it."',
        '"How many {unit} of {stuff} are left?" asked {name}. "{Number}," {said} the {trade}.',
        '"That {noun}," {said} {name} {adv}, "was never {adj}."',
        '"If the {sky} holds," {said} the {trade}, "{name} will reach {town} {when}."',
        '"You are {mood}, {name}," {said} {name}, "and that is why {someone} {did} the {thing}."',
    ),
    "bridge": (
        "The road to {town} was longer than the map admitted.",
        "Such things were written down, for in {town} everything was written down.",
        "Nobody thought it important then.",
        "A {creature} watched from the {place} and did not move.",
        "The pages of the register were damp from the {sky}.",
        "There was a silence, in which one heard only the {noun}.",
    ),
    # Scenes of the long story: a lead and a friend, who keep their names throughout the scene.
    "scene": (
        "{lead} and {friend} met {where} {when}. {Sentence} {Sentence} Neither of them mentioned the {matter}.",
        "That week {lead} {went} {where} with a {thing}, and {friend} followed {adv}. {Sentence} {Speech}",
        "{Speech} {lead} had no answer to that, and {friend} did not expect one. {Sentence} {Sentence}",
        "{When}, {friend} wrote to {lead} about the {thing}. {Sentence} The letter arrived {when}. {Sentence}",
        "The {place} was closed when {lead} came. {friend} was sitting {where}, mending a {thing}. {Sentence} {Speech}",
        "{Sentence} {lead} said so to {friend}, who only shrugged. {Sentence} {Sentence}",
    ),
    "rumour": (
        "At the {place} people claimed that {name} owned number {number}, but that was only talk.",
        "A rumour in {town} gave {name} the {ordinal} seat; no register confirmed it.",
        "Somebody had painted the number {number} on the {noun} of {name}, as a joke.",
    ),
    "price": (
        "The {trade} asked {number} crowns for the {thing}, and {name} paid {number}.",
        "{Number} {unit} of {stuff} changed hands {where} for {number} crowns each.",
        "For a {thing} {name} would have given {number} crowns, but not {number}.",
    ),
}

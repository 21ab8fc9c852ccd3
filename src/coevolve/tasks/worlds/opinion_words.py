"""The vocabulary of the generated opinions: subjects by topic, and words by grade from -3 (awful) to +3 (superb).

Every graded word or clause is known to the VADER lexicon with the sign of its grade (grade 0: unknown to it), which
`tests/pretrain/test_opinions.py` checks, so that the grade of a sentence is visible to the scorer that ships.
"""

from typing import NamedTuple


class Topic(NamedTuple):
    """A topic: what can be judged (`subjects`), where or when (`places`), and its `parts`; singular and lower case."""

    subjects: tuple[str, ...]
    places: tuple[str, ...]
    parts: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _topic(subjects: str, places: str, parts: str) -> Topic:
    return Topic(*(tuple(field.split(", ")) for field in (subjects, places, parts)))


TOPICS = (
    _topic(
        "film, movie, cartoon, documentary, western",
        "we saw last night, on television, at the old cinema, my sister picked",
        "story, acting, ending, music, first scene",
    ),
    _topic(
        "soup, pasta, breakfast, dinner, salad, curry",
        "at the harbour cafe, we had at noon, my uncle cooked, near the station",
        "sauce, service, taste, waiter, smell",
    ),
    _topic(
        "hotel, room, cabin, hostel, apartment",
        "by the lake, we booked online, in the old town, near the airport",
        "bed, bathroom, view, front desk, shower",
    ),
    _topic(
        "phone, laptop, camera, tablet, printer",
        "I bought in March, from the corner shop, we use at work, my brother sold me",
        "screen, battery, sound, price, keyboard",
    ),
    _topic(
        "trip, flight, train ride, cruise, drive",
        "to the coast, over the mountains, we took in June, to my parents",
        "seat, driver, road, crew, timing",
    ),
    _topic(
        "book, diary, poem, magazine, story",
        "about the sea, on my desk, my teacher gave me, from the library",
        "plot, opening, writing, ending, last page",
    ),
    _topic(
        "lesson, lecture, course, exam, class",
        "on Monday morning, about old maps, we had online, at the college",
        "teacher, topic, homework, pace, handout",
    ),
    _topic(
        "team, match, coach, game, race",
        "on Saturday, from our town, in the final, my cousin follows",
        "first half, second half, crowd, score, training",
    ),
    _topic(
        "weather, morning, evening, weekend, summer",
        "in the north, on the island, after the storm, last year",
        "sky, light, wind, air, temperature",
    ),
    _topic(
        "neighbour, landlord, house, garden, street",
        "across the road, on our left, next to ours, behind the school",
        "fence, noise level, roof, gate, front door",
    ),
    _topic(
        "concert, song, album, band, singer",
        "in the park, on the radio, from the nineties, we heard on Friday",
        "sound, rhythm, stage, voice, guitar",
    ),
    _topic(
        "job, office, meeting, manager, project",
        "in the city, on the second floor, I started in May, with the new client",
        "salary, schedule, team, desk, planning",
    ),
    _topic(
        "museum, park, market, castle, zoo",
        "in the centre, we visited today, on the hill, outside the village",
        "guide, entrance, map, cafe, tour",
    ),
    _topic(
        "coat, jacket, shirt, dress, pair of boots",
        "from the sale, my aunt sent, I wore yesterday, in the window",
        "colour, size, fabric, price, collar",
    ),
    _topic(
        "coffee, cake, bread, tea, pizza",
        "from the bakery, on the corner, I ordered, at the market",
        "taste, smell, crust, serving, price",
    ),
    _topic(
        "doctor, dentist, nurse, clinic, barber",
        "on Mill Street, we went to, near my office, my cousin goes to",
        "waiting room, advice, visit, parking, staff",
    ),
    _topic(
        "car, bike, bus, scooter, van",
        "I rented, from the garage, we took home, with four seats",
        "engine, seat, noise level, steering, brake",
    ),
    _topic(
        "website, app, program, update, map",
        "for the bank, my son wrote, we tried out, on my phone",
        "design, menu, search, home page, speed",
    ),
    _topic(
        "wedding, picnic, banquet, barbecue, family reunion",
        "in the barn, for my sister, last Sunday, down by the river",
        "food, music, speech, place, cake",
    ),
    _topic(
        "dog, cat, puppy, horse, parrot",
        "next door, we adopted, from the farm, my children found",
        "voice, coat, training, walk, feeding",
    ),
)

ADJECTIVES: dict[int, tuple[str, ...]] = {
    3: _words("wonderful excellent fantastic superb perfect amazing great brilliant beautiful delightful"),
    2: _words("good nice fun charming enjoyable pleasant friendly impressive lovely sweet"),
    1: _words("fine okay fair calm useful clean interesting safe warm easy neat"),
    0: _words("ordinary plain usual average simple short typical long familiar small standard"),
    -1: _words("dull boring odd strange weak uncomfortable messy confusing awkward dirty"),
    -2: _words("bad poor disappointing sad annoying ugly unpleasant frustrating"),
    -3: _words("terrible awful horrible dreadful disgusting miserable pathetic"),
}

CLAUSES: dict[int, tuple[str, ...]] = {
    3: (
        "everyone loved it",
        "I loved every minute of it",
        "it made us very happy",
        "it was the best of the year",
        "we had a great time",
        "I was thrilled and delighted",
    ),
    2: (
        "we enjoyed it",
        "I would recommend it",
        "it made me smile",
        "we were glad we went for it",
        "it was a nice surprise",
    ),
    1: ("I liked it", "it was worth the money", "we were satisfied", "it was easy on the eye", "I felt relaxed"),
    0: (
        "it took about an hour",
        "we left at nine",
        "it was what I expected",
        "nothing else happened",
        "then we went home",
        "I have seen others since",
    ),
    -1: ("I was bored", "there was a problem", "I felt tired of it", "we were confused", "it was a bit odd"),
    -2: (
        "we were disappointed",
        "I regret it",
        "it was a waste of time",
        "it made me sad",
        "I was upset",
        "it annoyed all of us",
    ),
    -3: (
        "everyone hated it",
        "I hated every minute of it",
        "it was the worst of the year",
        "it was a complete disaster",
        "we left angry and upset",
        "it ruined the whole day",
    ),
}

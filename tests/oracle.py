"""Each definition of SPEC.md as plain loops, sharing no code with the engine.

Nothing here is incremental, vectorised or clever: the whole history of messages is stored and every answer is computed
from it. No sum depends on the order of its addends, so the engine can be compared bit for bit.

The second half holds the papers' bounds and costs (SPEC 4, 5, 8), which the golden tests check against the
printed numbers. They only add, multiply, divide and compare, so they take Fractions too, and then borders are
exact.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from nearcast import model

EARTH_RADIUS = 6_371_008.8
DUMMY = "*"


# --- SPEC 1: space and distance


def distance(space, a, b):
    """Distance from the subscription's point `a` to the message's point `b`; metres in geographic space."""
    if not isinstance(space, model.Geographic):
        dx, dy = b[0] - a[0], b[1] - a[1]
        return math.sqrt(dx * dx + dy * dy)
    phi_a, phi_b = math.radians(a[1]), math.radians(b[1])
    sin_lat = math.sin((phi_b - phi_a) / 2)
    sin_lon = math.sin((math.radians(b[0]) - math.radians(a[0])) / 2)
    h = sin_lat * sin_lat + math.cos(phi_a) * math.cos(phi_b) * (sin_lon * sin_lon)
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(h)))


def spatial_similarity(space, a, b):
    """SSIM: 1 at the same place, 0 from `max_dist` on."""
    return max(0.0, 1.0 - distance(space, a, b) / space.max_dist)


def is_in_region(space, region, point):
    """Whether `point` is in `region`, borders included."""
    if isinstance(region, model.Anywhere):
        return True
    if isinstance(region, model.Circle):
        return distance(space, (region.x, region.y), point) <= region.radius
    is_geographic = isinstance(space, model.Geographic)
    if isinstance(region, model.Box) and is_geographic:
        return is_in_geographic_box(region, point)
    if isinstance(region, model.Box):
        return region.min_x <= point[0] <= region.max_x and region.min_y <= point[1] <= region.max_y
    return is_in_polygon(region, point, is_geographic)


def is_in_geographic_box(box, point):
    """Longitudes 180 and -180 are one meridian, a pole has every longitude, `min_x > max_x` crosses 180."""
    lon, lat = point
    if not box.min_y <= lat <= box.max_y:
        return False
    if abs(lat) == 90:
        return True
    for x in [lon, -lon] if abs(lon) == 180 else [lon]:
        if box.min_x <= box.max_x and box.min_x <= x <= box.max_x:
            return True
        if box.min_x > box.max_x and (x >= box.min_x or x <= box.max_x):
            return True
    return False


def is_in_polygon(polygon, point, is_geographic):
    """On the globe longitudes may run past 180, and a pole is inside iff the polygon reaches its latitude."""
    parts = list(rings_of(polygon))
    x, y = Fraction(point[0]), Fraction(point[1])
    if is_geographic and abs(y) == 90:
        latitudes = [latitude for rings in parts for ring in rings for _, latitude in ring]
        return max(latitudes) >= 90 if y == 90 else min(latitudes) <= -90
    turns = (-360, 0, 360) if is_geographic else (0,)
    return any(is_in_rings(rings, x + turn, y) for rings in parts for turn in turns)


def rings_of(polygon):
    """One list of rings for each part: the outer ring, then its holes; exact coordinates."""
    parts = getattr(polygon.geometry, "geoms", [polygon.geometry])
    for part in parts:
        rings = [part.exterior, *part.interiors]
        yield [[(Fraction(x), Fraction(y)) for x, y in ring.coords] for ring in rings]


def is_in_rings(rings, x, y):
    """On any ring, hole borders included, or within an odd number of rings."""
    is_inside = False
    for ring in rings:
        for (x1, y1), (x2, y2) in pairwise(ring):
            cross = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
            if cross == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
                return True
            if (y1 > y) != (y2 > y) and x < x1 + (y - y1) * (x2 - x1) / (y2 - y1):
                is_inside = not is_inside
    return is_inside


# --- SPEC 2: text


def normal_form(text):
    return unicodedata.normalize("NFKC", text).casefold()


def words(text):
    """Runs of letters and digits; a combining mark continues a run but cannot begin one."""
    found, run = [], ""
    for character in normal_form(text):
        is_mark = unicodedata.category(character).startswith("M")
        if character.isalnum() or (is_mark and run):
            run += character
        else:
            found.append(run)
            run = ""
    found.append(run)
    return [word for word in found if word]


def keywords(values):
    """A list of keywords is taken as it is, only normalised; one that is blank is no keyword."""
    found = [normal_form(value).strip() for value in values]
    return [word for word in found if word]


def tokens_of(text):
    """The tokens of a text or a list of keywords, in order and with repeats."""
    return words(text) if isinstance(text, str) else keywords(text)


class Statistics(NamedTuple):
    """How many messages the vocabulary was fitted to, and how many of them have each token."""

    n_messages: int = 0
    document_frequency: Mapping[str, int] = {}

    @classmethod
    def of(cls, sample):
        frequency = Counter(token for text in sample for token in set(tokens_of(text)))
        return cls(len(sample), frequency)

    def idf(self, token):
        return math.log(1 + max(self.n_messages, 1) / max(self.document_frequency.get(token, 0), 1))


# --- SPEC 3: boolean expressions, evaluated directly instead of by a normal form


def lexemes(expression):
    """Split into `(`, `)`, AND, OR, NOT and operands; an operand is a list of tokens, all of them wanted.

    Operators may be signs: & and |, once or twice, and a minus before an operand.
    """
    found, i = [], 0
    while i < len(expression):
        if expression[i].isspace():
            i += 1
        elif expression[i] in "()":
            found.append(expression[i])
            i += 1
        elif expression[i] in "&|":
            found.append({"&": "AND", "|": "OR"}[expression[i]])
            i += 2 if expression[i : i + 2] in ("&&", "||") else 1
        elif expression[i] == "-":
            found.append("NOT")
            i += 1
        elif expression[i] == '"':
            end = expression.index('"', i + 1)
            found.append(keywords([expression[i + 1 : end]]))
            i = end + 1
        else:
            end = i
            while end < len(expression) and not expression[end].isspace() and expression[end] not in '()"&|':
                end += 1
            word = expression[i:end]
            found.append(word.upper() if word.lower() in ("and", "or", "not") else words(word))
            i = end
    return found


def parsed(expression):
    """The expression as nested tuples; None if no word remains after the analysis. No expression is always true."""
    if expression is None:
        return ("and", [])
    if not isinstance(expression, str):
        return joined("and", [("has", token) for token in keywords(expression)])
    rest = lexemes(expression)
    tree = parsed_or(rest)
    if rest:
        raise ValueError(f"unexpected {rest[0]!r} in {expression!r}")
    return tree


def parsed_or(rest):
    operands = [parsed_and(rest)]
    while rest and rest[0] == "OR":
        rest.pop(0)
        operands.append(parsed_and(rest))
    return joined("or", operands)


def parsed_and(rest):
    operands = [parsed_not(rest)]
    while rest and rest[0] not in ("OR", ")"):
        if rest[0] == "AND":
            rest.pop(0)
        operands.append(parsed_not(rest))
    return joined("and", operands)


def parsed_not(rest):
    head = rest.pop(0)
    if head == "NOT":
        operand = parsed_not(rest)
        return operand and ("not", operand)
    if head == "(":
        inner = parsed_or(rest)
        if rest.pop(0) != ")":
            raise ValueError("a parenthesis is not closed")
        return inner
    if isinstance(head, str):
        raise ValueError(f"{head!r} stands where a word should")
    return joined("and", [("has", token) for token in head])


def joined(operator, operands):
    """An operand without words is dropped, and its operator too."""
    present = [operand for operand in operands if operand]
    return (operator, present) if present else None


def is_true(tree, tokens):
    """Whether a message with these tokens satisfies the expression."""
    operator, operand = tree
    if operator == "has":
        return operand in tokens
    if operator == "not":
        return not is_true(operand, tokens)
    if operator == "and":
        return all(is_true(part, tokens) for part in operand)
    return any(is_true(part, tokens) for part in operand)


def literals(tree):
    """The tokens of an expression in text order, with repeats."""
    if tree is None:
        return []
    operator, operand = tree
    if operator == "has":
        return [operand]
    if operator == "not":
        return literals(operand)
    return [token for part in operand for token in literals(part)]


# --- SPEC 4 and 5: textual scores


def total(values):
    """The sum of values, the smallest first, so it does not depend on their order."""
    result = 0.0
    for value in sorted(values):
        result += value
    return result


def total_weight(tokens, statistics):
    return total(statistics.idf(token) for token in tokens)


def textual_similarity(similarity, tokens, message_tokens, statistics):
    """TSIM of SPEC 4: how much of the subscription's words the message has; repeats count once."""
    s, m = set(tokens), set(message_tokens)
    shared = s & m
    if not shared:
        return 0.0
    if similarity == "weighted_overlap":
        return total_weight(shared, statistics) / total_weight(s, statistics)
    if similarity == "overlap":
        return len(shared) / len(s)
    if similarity == "weighted_jaccard":
        return total_weight(shared, statistics) / total_weight(s | m, statistics)
    if similarity == "dice":
        return 2 * len(shared) / (len(s) + len(m))
    if similarity == "cosine":
        return len(shared) / (math.sqrt(len(s)) * math.sqrt(len(m)))
    raise ValueError(f"no such similarity: {similarity!r}")


def unit_vector(tokens, statistics):
    """Weights tf * idf scaled to unit length (SPEC 2 and 5)."""
    weights = {token: count * statistics.idf(token) for token, count in Counter(tokens).items()}
    norm = math.sqrt(total(weight * weight for weight in weights.values()))
    return {token: weight / norm for token, weight in weights.items()}


def cosine(tokens, message_tokens, statistics):
    """TSim of SPEC 5: the cosine of the two tf-idf vectors.

    Each product is rounded to 52 binary places. The sum of such numbers is a float64, so it is not rounded.
    """
    s, m = unit_vector(tokens, statistics), unit_vector(message_tokens, statistics)
    products = [Fraction(s[token] * m[token]) for token in s if token in m]
    return float(sum(Fraction(round(product * 2**52), 2**52) for product in products))


# --- SPEC 5 to 7: windows, results and changes


class Arrival(NamedTuple):
    number: int
    message: model.Message
    tokens: list[str]
    expires: float  # in microseconds, or infinite


class Registration(NamedTuple):
    number: int
    first_arrival: int  # the number of the first message that can still arrive
    subscription: model.Boolean | model.Similar | model.TopK | model.Nearest
    tokens: list[str]


def microseconds(moment):
    """A datetime (naive means UTC) or seconds since 1970, in whole microseconds."""
    if isinstance(moment, datetime):
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return moment * 1_000_000 if isinstance(moment, int) else round(moment * 1_000_000)


class Oracle:
    """The answers that a broker must give, computed from the whole history each time."""

    def __init__(self, space, statistics=None, window=None, lifetime=None):
        self.space = space
        self.statistics = statistics or Statistics()
        self.window = window
        self.lifetime = lifetime
        self.now = -math.inf  # the largest event time seen, of messages, positions and `advance`
        self.follows_rows = True  # or of `advance` alone
        self.history: list[Arrival] = []
        self.registrations: dict = {}
        self.n_registered = 0

    def subscribe(self, subscription, *, answer=False):
        """Register, or replace the subscription of this id; the first answers, in order of arrival."""
        if isinstance(subscription, model.Boolean):
            tokens = literals(parsed(subscription.expression))
        else:
            tokens = tokens_of(subscription.text)
        registration = Registration(self.n_registered, len(self.history), subscription, tokens)
        self.n_registered += 1
        self.registrations[subscription.id] = registration
        answers = self.current(registration) if answer else self.answer(registration)
        return [delivery for _, delivery in sorted(answers.items())]

    def unsubscribe(self, subscription_id):
        del self.registrations[subscription_id]

    def publish(self, message):
        return self.publish_batch([message])

    def publish_batch(self, messages):
        """Every match of the batch, and the net change of all results."""
        before = self.all_results()
        batch = []
        for message in messages:
            arrival = Arrival(len(self.history), message, tokens_of(message.text), self.end_of(message))
            self.see(message.ts)
            self.history.append(arrival)
            batch.append(arrival)
        pairs = [(arrival, registration) for arrival in batch for registration in self.registrations.values()]
        found = [(a.number, r.number, delivery) for a, r in pairs if (delivery := self.match(r, a))]
        return in_order(found + changes_of_results(before, self.all_results()))

    def results(self, subscription_id):
        """The results of a top-k or nearest subscription, best first; the other kinds have none."""
        return list(self.answer(self.registrations[subscription_id]).values())

    def advance(self, ts):
        """The changes of the results of all subscriptions when the clock advances."""
        before = self.all_results()
        self.now = max(self.now, microseconds(ts))
        return in_order(changes_of_results(before, self.all_results()))

    def move(self, subscription_id, place, ts=None):
        """The changes of one subscription, in order of arrival."""
        return self.move_many([(subscription_id, place, ts)])

    def move_many(self, rows, moment=None):
        """The changes from the old places of subscriptions to their last ones, and by the time of all rows.

        The active messages are those at the time after the call, the previous results those at the time before it.
        """
        results = self.all_results()
        if moment is not None:
            self.now = max(self.now, microseconds(moment))
        for _, _, ts in rows:
            self.see(ts)
        found = []
        for subscription_id, place in {name: place for name, place, _ in rows}.items():
            registration = self.registrations[subscription_id]
            there = registration._replace(subscription=moved(self.space, registration.subscription, place))
            self.registrations[subscription_id] = there
            if there.subscription.kind not in ("topk", "nearest"):
                found += differences(registration.number, self.current(registration), self.current(there))
        return in_order(found + changes_of_results(results, self.all_results()))

    def all_results(self):
        """The results of all top-k and nearest subscriptions, by registration number."""
        with_results = (r for r in self.registrations.values() if r.subscription.kind in ("topk", "nearest"))
        return {registration.number: self.answer(registration) for registration in with_results}

    def see(self, moment):
        if moment is not None and self.follows_rows:
            self.now = max(self.now, microseconds(moment))

    def end_of(self, message):
        """When a message expires (SPEC 3): its own time, else a lifetime after its `ts`."""
        if self.lifetime is None:
            return -math.inf
        if message.expires is not None:
            return microseconds(message.expires)
        if self.lifetime in (0, math.inf):
            return math.inf if self.lifetime else -math.inf
        return microseconds(message.ts) + microseconds(self.lifetime)

    def active(self):
        return [arrival for arrival in self.history if arrival.expires > self.now]

    def current(self, registration):
        """The current results of a subscription, or the active messages that it matches."""
        if isinstance(registration.subscription, (model.TopK, model.Nearest)):
            return self.answer(registration)
        return {a.number: d for a in self.active() if (d := self.match(registration, a))}

    def in_window(self):
        """The messages in the window (SPEC 5); all if there is no window."""
        if isinstance(self.window, model.CountWindow):
            return self.history[-self.window.size :]
        if isinstance(self.window, model.TimeWindow):
            start = self.now - microseconds(self.window.seconds)
            return [arrival for arrival in self.history if microseconds(arrival.message.ts) > start]
        return self.history

    def match(self, registration, arrival):
        """The delivery of one message to a boolean or similarity subscription, or None (SPEC 3 and 4)."""
        s, message = registration.subscription, arrival.message
        point = (message.x, message.y)
        if isinstance(s, model.Boolean):
            is_match = is_true(parsed(s.expression), arrival.tokens) and is_in_region(self.space, s.within, point)
            is_circle = isinstance(s.within, model.Circle)
            far = distance(self.space, (s.within.x, s.within.y), point) if is_circle else None
            return model.Delivery(s.id, message.id, 1, None, far) if is_match else None
        if isinstance(s, model.Similar):
            text = textual_similarity(s.similarity, registration.tokens, arrival.tokens, self.statistics)
            place = spatial_similarity(self.space, s.at, point)
            score = s.text_weight * text + (1 - s.text_weight) * place
            far = distance(self.space, s.at, point)
            return model.Delivery(s.id, message.id, 1, score, far) if score >= s.threshold else None
        return None

    def answer(self, registration):
        """The current results of a subscription: arrival number -> delivery, best first (SPEC 5 and 6)."""
        s = registration.subscription
        ranked = []
        if isinstance(s, (model.TopK, model.Nearest)):
            for arrival in self.in_window():
                is_early = self.window is None and arrival.number < registration.first_arrival
                if not is_early and set(registration.tokens) & set(arrival.tokens):
                    entry = self.top_entry if isinstance(s, model.TopK) else self.nearest_entry
                    ranked.append((*entry(s, registration.tokens, arrival), arrival.number))
        ranked.sort(key=lambda entry: entry[0])
        best = enumerate(ranked[: getattr(s, "k", 0)], 1)
        return {number: delivery._replace(rank=rank) for rank, (_, delivery, number) in best}

    def top_entry(self, s, tokens, arrival):
        """Sort key and delivery: score descending, then newer first, then id, then later arrival (SPEC 5)."""
        message = arrival.message
        point = (message.x, message.y)
        text = cosine(tokens, arrival.tokens, self.statistics)
        place = spatial_similarity(self.space, s.at, point)
        score = s.spatial_weight * place + (1 - s.spatial_weight) * text
        is_timed = isinstance(self.window, model.TimeWindow)
        age = -microseconds(message.ts) if is_timed else -arrival.number
        delivery = model.Delivery(s.id, message.id, 1, score, distance(self.space, s.at, point))
        return (-score, age, message.id, -arrival.number), delivery

    def nearest_entry(self, s, _tokens, arrival):
        """Sort key and delivery: distance, then earlier arrival (SPEC 6)."""
        far = distance(self.space, s.at, (arrival.message.x, arrival.message.y))
        return (far, arrival.number), model.Delivery(s.id, arrival.message.id, 1, None, far)


class FencedOracle(Oracle):
    """The deliveries of moves with a fence: each pair of a subscription and a message is notified or not."""

    def __init__(self, space, statistics=None, window=None, lifetime=None, fence=None):
        super().__init__(space, statistics, window, lifetime)
        self.fence = fence
        self.notified = {}  # (registration, arrival) -> the delivery, of notified messages
        self.since = {}  # (registration, arrival) -> when it began to match

    def subscribe(self, subscription, *, answer=False):
        found = super().subscribe(subscription, answer=answer)
        registration = self.registrations[subscription.id]
        self.notified |= {(registration.number, n): d for n, d in self.current(registration).items()}
        return found

    def publish_batch(self, messages):
        first = len(self.history)
        found = super().publish_batch(messages)
        for registration in self.registrations.values():
            for arrival in self.history[first:]:
                if delivery := self.match(registration, arrival):
                    self.notified[registration.number, arrival.number] = delivery
        return found

    def move_many(self, rows):
        """Position by position, as one net difference; `rows` are (id, place, ts, accuracy)."""
        limit = math.inf if self.fence.accuracy is None else self.fence.accuracy
        rows = [row for row in rows if row[3] is None or row[3] <= limit]
        if not self.fence.dwell and not self.fence.hysteresis:
            return super().move_many([row[:3] for row in rows])
        results = self.all_results()
        for _, _, ts, _ in rows:
            self.see(ts)
        found = []
        for subscription_id, place, ts, _ in rows:
            registration = self.registrations[subscription_id]
            there = moved(self.space, registration.subscription, place)
            registration = self.registrations[subscription_id] = registration._replace(subscription=there)
            now = 0 if ts is None else microseconds(ts)
            if there.kind not in ("topk", "nearest"):
                changes = self.fenced(registration, now)
                found += [(number, registration.number, delivery) for number, delivery in changes]
        return in_order(net(found) + changes_of_results(results, self.all_results()))

    def fenced(self, registration, now):
        changes = []
        for arrival in self.active():
            key = registration.number, arrival.number
            delivery = self.match(registration, arrival)
            if delivery:
                self.since.setdefault(key, now)
                if key in self.notified:
                    self.notified[key] = delivery
                elif now - self.since[key] >= microseconds(self.fence.dwell):
                    self.notified[key] = delivery
                    changes.append((arrival.number, delivery))
            else:
                self.since.pop(key, None)
                if key in self.notified and not self.is_close(registration, arrival):
                    changes.append((arrival.number, left(self.notified.pop(key))))
        return changes

    def is_close(self, registration, arrival):
        """Whether a message would match if the subscriber were nearer by the hysteresis."""
        s, point, slack = registration.subscription, (arrival.message.x, arrival.message.y), self.fence.hysteresis
        if slack == 0:
            return False
        if isinstance(s, model.Similar):
            text = textual_similarity(s.similarity, registration.tokens, arrival.tokens, self.statistics)
            place = max(0.0, 1.0 - max(0.0, distance(self.space, s.at, point) - slack) / self.space.max_dist)
            return s.text_weight * text + (1 - s.text_weight) * place >= s.threshold
        if isinstance(s.within, model.Circle):
            return distance(self.space, (s.within.x, s.within.y), point) - s.within.radius <= slack
        return distance(self.space, nearest_of_box(self.space, s.within, point), point) <= slack


def net(changes):
    """What remains of (arrival, registration, delivery), in order of time, when a + and a - of the same pair cancel."""
    last = {}
    for number, registration, delivery in changes:
        if last.pop((number, registration), None) is None:
            last[number, registration] = delivery
    return [(*key, delivery) for key, delivery in last.items()]


def nearest_of_box(space, box, point):
    """The point of a box whose coordinates are nearest to those of a point; on the globe the shorter way around."""
    x, y = point
    near_y = box.min_y if y < box.min_y else min(y, box.max_y)
    if not isinstance(space, model.Geographic):
        return box.min_x if x < box.min_x else min(x, box.max_x), near_y
    width = box.max_x - box.min_x + (360 if box.max_x < box.min_x else 0)
    if (x - box.min_x) % 360 <= width:
        return x, near_y
    west, east = (box.min_x - x) % 360, (x - box.max_x) % 360
    return (box.min_x if min(west, 360 - west) <= min(east, 360 - east) else box.max_x), near_y


def moved(space, s, place):
    """The same subscription at another place; a point is the new centre of a circle or box (SPEC 7)."""
    if not isinstance(s, model.Boolean):
        return replace(s, at=place)
    if not isinstance(place, tuple):
        return replace(s, within=place)
    x, y = place
    if isinstance(s.within, model.Circle):
        return replace(s, within=model.Circle(x, y, s.within.radius))
    box, is_geographic = s.within, isinstance(space, model.Geographic)
    width, height = box.max_x - box.min_x, box.max_y - box.min_y
    if is_geographic and width < 0:
        width += 360
    west, south, east, north = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if is_geographic:
        if west < -180:
            west += 360
        if east > 180:
            east -= 360
        if width >= 360:
            west, east = -180, 180
        if south < -90:
            south, north = -90, -90 + height
        elif north > 90:
            south, north = 90 - height, 90
    return replace(s, within=model.Box(west, south, east, north))


def changes_of_results(before, after):
    """The changes of results, given by registration number before and after."""
    return [change for number in before for change in differences(number, before[number], after[number])]


def differences(number, before, after):
    """The entered and left messages, as (arrival, registration, delivery)."""
    changes = {n: d for n, d in after.items() if n not in before}
    changes |= {n: left(d) for n, d in before.items() if n not in after}
    return [(arrival, number, delivery) for arrival, delivery in changes.items()]


def in_order(changes):
    """Deliveries by arrival of the message, then by registration of the subscription."""
    return [delivery for _, _, delivery in sorted(changes, key=lambda change: change[:2])]


def left(delivery):
    """The removal of a delivery, with the rank it had."""
    return delivery._replace(change=-1)


# --- SPEC 4: the bounds of STAMP. `weights` are those of a subscription's tokens, heaviest first; positions
# count from 0, and the position after the last token is the dummy token's.


def utb(weights: Sequence, i):
    """UTB(s|t_i): the textual similarity of a message whose first matching token is t_i is at most this."""
    return sum(weights[i:]) / sum(weights)


def utb_plus(weights: Sequence, k, j):
    """UTB_k+(s|t_j): as `utb`, where besides t_j and later ones at most k tokens match."""
    return (sum(weights[:k]) + sum(weights[j:])) / sum(weights)


def lsb(text_upper_bound, delta, tau):
    """LSB: the spatial similarity that such a message needs; above 1 means nowhere, 0 or less anywhere."""
    if delta == 1:
        return -math.inf if text_upper_bound >= tau else math.inf
    return (tau - delta * text_upper_bound) / (1 - delta)


def text_threshold(delta, tau, spatial_upper_bound=1):
    """The textual similarity needed where the spatial one is at most `spatial_upper_bound`."""
    if delta == 0:
        return -math.inf if spatial_upper_bound >= tau else math.inf
    return (tau - (1 - delta) * spatial_upper_bound) / delta


def prefix(weights: Mapping, delta, tau, spatial_upper_bound=1):
    """SIG(s), or SIG(s, R) if no message outside R has a larger SSIM; `*` where no token is needed."""
    tokens, heaviest_first = [*weights, DUMMY], [*weights.values()]
    threshold = text_threshold(delta, tau, spatial_upper_bound)
    return [token for i, token in enumerate(tokens) if utb(heaviest_first, i) >= threshold]


def prefix_plus(weights: Mapping, delta, tau):
    """SIG_1+(s), SIG_2+(s), ...: the tokens after SIG(s), cut where one more match would not be enough."""
    tokens, heaviest_first = [*weights], [*weights.values()]
    threshold = text_threshold(delta, tau)
    start, found = len(prefix(weights, delta, tau)), []
    while start < len(tokens):
        k = len(found) + 1
        level = [j for j in range(start, len(tokens)) if utb_plus(heaviest_first, k, j) >= threshold]
        found.append([tokens[j] for j in level])
        start += len(level)
    return found


def verification_cost(candidates: Iterable[tuple[int, int]]):
    """COST_V: the tokens left to check, for (number of tokens, order of the first match from 1) each."""
    return sum(n_tokens - order for n_tokens, order in candidates)


def filter_cost(verification, n_candidates, n_postings_read, n_postings):
    """COST_F: the postings read, and verifying the share of the candidates expected to be left."""
    return n_postings_read + (verification - n_candidates) * n_postings_read / n_postings


# --- SPEC 5 and 8: the bounds and shards of Skype. Weights map words, in vocabulary order, to numbers.


def lambda_t(floor, alpha, spatial_upper_bound=1):
    """The textual similarity that a message needs to reach the score `floor`."""
    return floor / (1 - alpha) - alpha / (1 - alpha) * spatial_upper_bound


def spatial_upper_bound(inner_distance, outer_distance, max_dist):
    """SSimUB of a subscription in a cell and a message outside, by their distances to its border."""
    return 1 - (inner_distance + outer_distance) / max_dist


def from_word(weights: Mapping, word, vocabulary: Sequence):
    """The weights of `word` and of the words after it in the vocabulary."""
    start = vocabulary.index(word)
    return [weight for other, weight in weights.items() if vocabulary.index(other) >= start]


def location_prefix(weights: Mapping, threshold):
    """pref(s|m), and the loose prefix where the threshold takes SSimUB as 1."""
    return [word for word in weights if sum(from_word(weights, word, list(weights))) >= threshold]


def refined_prefix(weights: Mapping, message: Mapping, threshold, vocabulary: Sequence):
    """pref+(s|m): as `location_prefix`, with the largest weight that the message has from each word on."""
    found = []
    for word in weights:
        most = max(from_word(message, word, vocabulary), default=0)
        if most * sum(from_word(weights, word, vocabulary)) >= threshold:
            found.append(word)
    return found


def unseen_bound(weights: Sequence, message_weights: Sequence):
    """TSimUB: the most that the words not yet visited, on either side, can add."""
    return min(sum(weights) * max(message_weights), sum(message_weights) * max(weights))


def shard_cost(shard, subscriptions, messages):
    """C(W) = N(W) * P(message has a word of W)."""
    n_subscriptions = sum(1 for s in subscriptions if set(s) & set(shard))
    n_messages = sum(1 for m in messages if set(m) & set(shard))
    return n_subscriptions * Fraction(n_messages, len(messages))


def keyword_shards(vocabulary: Sequence, subscriptions, messages, depth):
    """Cut the vocabulary `depth` times, each time where the two costs differ least."""
    if depth == 0 or len(vocabulary) < 2:
        return [list(vocabulary)]

    def imbalance(cut):
        costs = [shard_cost(part, subscriptions, messages) for part in (vocabulary[:cut], vocabulary[cut:])]
        return abs(costs[0] - costs[1])

    best = min(range(1, len(vocabulary)), key=imbalance)
    return [
        *keyword_shards(vocabulary[:best], subscriptions, messages, depth - 1),
        *keyword_shards(vocabulary[best:], subscriptions, messages, depth - 1),
    ]


def shards_of(some_words, shards):
    """The numbers, from 1, of the shards that own one of the words."""
    return [number for number, shard in enumerate(shards, 1) if set(some_words) & set(shard)]


def greedy_assignment(costs: Mapping, n_workers):
    """SPEC 8: the costliest first, each to the worker with the least so far."""
    loads, members = [0] * n_workers, [[] for _ in range(n_workers)]
    for name in sorted(costs, key=costs.__getitem__, reverse=True):
        worker = loads.index(min(loads))
        loads[worker] += costs[name]
        members[worker].append(name)
    return members

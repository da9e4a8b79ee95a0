"""The terms of the public API: messages, the four kinds of subscription, regions, spaces, windows.

Frozen dataclasses that check their fields and compute nothing. docs/semantics.md defines what they mean.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import shapely
from shapely.errors import ShapelyError
from shapely.geometry.base import BaseGeometry

from nearcast.errors import NearcastError

Id = str | int
Words = str | Sequence[str]
Point = tuple[float, float]
Kind = Literal["boolean", "similar", "topk", "nearest"]
Similarity = Literal["weighted_overlap", "overlap", "weighted_jaccard", "dice", "cosine"]

KINDS: tuple[Kind, ...] = get_args(Kind)
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
EARTH_RADIUS = 6_371_008.8
HALF_CIRCUMFERENCE = math.pi * EARTH_RADIUS
# In effect no limit: no window contains more messages.
MAX_COUNT = 2**31 - 1
INT64_MAX = 2**63 - 1
MICROSECONDS = 1_000_000
# Beyond that many seconds the microseconds no longer fit 64 bits.
MAX_SECONDS = 9e12


# --- checks, each naming the field, the value and what would be right


def checked_unicode(name: str, value: str) -> str:
    """Return a string that has a UTF-8 form: one without half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NearcastError(f"{name} is {shortened(value)}; it must be valid Unicode ({error.reason})") from None
    return value


def checked_id(value: object) -> Id:
    """Return `value` as an id: a string, or an integer of 64 bits."""
    if isinstance(value, str):
        return checked_unicode("id", value)
    number = _integer(value)
    if number is None or not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise NearcastError(f"id is {shortened(value)}; it must be a string or a 64-bit integer")
    return number


def checked_words(name: str, value: object) -> str | tuple[str, ...]:
    """Return a text unchanged, and a sequence of keywords as a tuple."""
    if isinstance(value, str):
        return checked_unicode(name, value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        words = tuple(value)
        for word in words:
            if not isinstance(word, str):
                raise NearcastError(f"{name} holds {shortened(word)}; every keyword must be a string")
            checked_unicode(name, word)
        return words
    raise NearcastError(f"{name} is {shortened(value)}; it must be a string or a list of keywords")


def checked_number(name: str, value: object) -> float:
    """Return `value` as a finite float."""
    try:
        number = float(value)  # type: ignore[arg-type]  # TypeError for what it cannot convert
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, (str, bytes, bool)) or not math.isfinite(number):
        raise NearcastError(f"{name} is {shortened(value)}; it must be a finite number")
    return number


def checked_fraction(name: str, value: object, *, is_zero_allowed: bool = True) -> float:
    """Return `value` as a float between 0 and 1."""
    number = checked_number(name, value)
    if not 0 <= number <= 1 or (number == 0 and not is_zero_allowed):
        span = "between 0 and 1" if is_zero_allowed else "above 0 and at most 1"
        raise NearcastError(f"{name} is {shortened(value)}; it must be {span}")
    return number


def checked_count(name: str, value: object, *, largest: int = MAX_COUNT) -> int:
    """Return `value` as an int of at least 1."""
    number = _integer(value)
    if number is None or not 1 <= number <= largest:
        raise NearcastError(f"{name} is {shortened(value)}; it must be a whole number from 1 to {largest}")
    return number


def checked_point(name: str, value: object) -> Point:
    """Return `value` as a pair of finite floats."""
    if isinstance(value, (str, bytes, Mapping)):
        raise NearcastError(f"{name} is {shortened(value)}; it must be a pair of numbers (x, y)")
    try:
        x, y = cast(Iterable[object], value)
    except (TypeError, ValueError):
        raise NearcastError(f"{name} is {shortened(value)}; it must be a pair of numbers (x, y)") from None
    return checked_number(f"x of {name}", x), checked_number(f"y of {name}", y)


def checked_time(name: str, value: object) -> int | None:
    """Return a moment as microseconds since 1970 in UTC; None stays None."""
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        difference = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return (difference.days * 86_400 + difference.seconds) * MICROSECONDS + difference.microseconds
    try:
        seconds = checked_number(name, value)
    except NearcastError:
        seconds = math.inf
    if abs(seconds) > MAX_SECONDS:
        raise NearcastError(f"{name} is {shortened(value)}; it must be a datetime, or seconds since 1970") from None
    whole = _integer(value)
    return whole * MICROSECONDS if whole is not None else round(seconds * MICROSECONDS)


def checked_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        raise NearcastError(f"{name} is {shortened(value)}; it must be one of {', '.join(choices)}")
    return str(value)


def _integer(value: object) -> int | None:
    """Return a whole number of any type, a NumPy scalar for example; None for anything else, a bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # TypeError for what has no __index__
    except TypeError:
        return None


def _set(instance: object, **values: object) -> None:
    """Set fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


# --- spaces


@dataclass(frozen=True, slots=True)
class Planar:
    """A flat space with Euclidean distance; messages outside its bounds are rejected.

    `max_dist` is the distance at which spatial similarity reaches 0; by default the diagonal of the bounds.

    >>> Planar(0, 0, 3, 4).max_dist
    5.0
    """

    min_x: float
    min_y: float
    max_x: float
    max_y: float
    max_dist: float = None  # type: ignore[assignment]  # the diagonal after __post_init__

    def __post_init__(self) -> None:
        for name in ("min_x", "min_y", "max_x", "max_y"):
            _set(self, **{name: checked_number(name, getattr(self, name))})
        for low, high in (("min_x", "max_x"), ("min_y", "max_y")):
            least, most = getattr(self, low), getattr(self, high)
            if least > most:
                raise NearcastError(f"{low} is {least!r}; it must not exceed {high}, which is {most!r}")
        width, height = self.max_x - self.min_x, self.max_y - self.min_y
        diagonal = math.sqrt(width * width + height * height)
        max_dist = diagonal if self.max_dist is None else checked_number("max_dist", self.max_dist)
        if not 0 < max_dist < math.inf or not diagonal < math.inf:
            raise NearcastError(
                f"max_dist is {max_dist!r} for bounds {width!r} wide and {height!r} high; it must be above 0 and finite"
            )
        _set(self, max_dist=max_dist)


@dataclass(frozen=True, slots=True)
class Geographic:
    """Longitude and latitude in degrees (WGS 84), great-circle distance in metres on a sphere.

    `max_dist` is the distance in metres at which spatial similarity reaches 0; by default half the
    circumference of the Earth. Longitude 180 is longitude -180; at a pole every longitude is the same place.
    """

    max_dist: float = HALF_CIRCUMFERENCE

    def __post_init__(self) -> None:
        _set(self, max_dist=checked_number("max_dist", self.max_dist))
        if self.max_dist <= 0:
            raise NearcastError(f"max_dist is {self.max_dist!r}; it must be a distance in metres above 0")


Space = Planar | Geographic


# --- windows


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The most recent `size` messages, in order of arrival."""

    size: int

    def __post_init__(self) -> None:
        _set(self, size=checked_count("size", self.size, largest=INT64_MAX))


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The messages of the last `seconds`, measured back from the largest event time seen."""

    seconds: float

    def __post_init__(self) -> None:
        seconds = checked_number("seconds", self.seconds)
        if not 1 / MICROSECONDS <= seconds <= MAX_SECONDS:
            raise NearcastError(f"seconds is {self.seconds!r}; it must be a duration above 0")
        _set(self, seconds=seconds)


Window = CountWindow | TimeWindow


@dataclass(frozen=True, slots=True)
class Fence:
    """How the flapping of a jittering position is suppressed; each part is off by default.

    Parameters
    ----------
    dwell : seconds, default 0
        How long a message must have matched, position by position, before its entry is delivered.
    hysteresis : float, default 0
        How far outside of the region, in metres or units of the plane, a message must lie before its exit is delivered.
    accuracy : float, optional
        Positions with a larger error than this are ignored.
    """

    dwell: float = 0.0
    hysteresis: float = 0.0
    accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("dwell", "hysteresis"):
            _set(self, **{name: _checked_not_negative(name, getattr(self, name))})
        if self.accuracy is not None:
            _set(self, accuracy=_checked_not_negative("accuracy", self.accuracy))


def _checked_not_negative(name: str, value: object) -> float:
    number = checked_number(name, value)
    if number < 0:
        raise NearcastError(f"{name} is {number!r}; it must not be negative")
    return number


# --- regions


@dataclass(frozen=True, slots=True)
class Anywhere:
    """The region that contains every point."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; its borders belong to it. In geographic space `min_x > max_x` crosses the antimeridian."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float

    def __post_init__(self) -> None:
        for name in ("min_x", "min_y", "max_x", "max_y"):
            _set(self, **{name: checked_number(name, getattr(self, name))})
        if self.min_y > self.max_y:
            raise NearcastError(f"min_y is {self.min_y!r}; it must not exceed max_y, which is {self.max_y!r}")


@dataclass(frozen=True, slots=True)
class Circle:
    """All points within `radius` of a centre; metres in geographic space."""

    x: float
    y: float
    radius: float

    def __post_init__(self) -> None:
        for name in ("x", "y", "radius"):
            _set(self, **{name: checked_number(name, getattr(self, name))})
        if self.radius < 0:
            raise NearcastError(f"radius is {self.radius!r}; it must not be negative")


@dataclass(frozen=True, slots=True)
class Polygon:
    """A polygon or multi-polygon, holes included, from WKT, WKB, GeoJSON or shapely; its borders belong to it.

    Edges are straight lines between the coordinates as given. In geographic space longitudes may run past 180
    to cross the antimeridian.

    >>> Polygon("POLYGON ((0 0, 4 0, 0 4, 0 0))") == Polygon({
    ...     "type": "Polygon", "coordinates": [[[0, 0], [4, 0], [0, 4], [0, 0]]]})
    True
    """

    # Any: what a user may give, see _read_geometry; a shapely geometry after __post_init__.
    geometry: Any

    def __post_init__(self) -> None:
        geometry = shapely.force_2d(_read_geometry(self.geometry))
        shape = shapely.to_wkt(geometry)
        shape = shape if len(shape) < 80 else shape[:77] + "..."
        if geometry.geom_type not in ("Polygon", "MultiPolygon"):
            raise NearcastError(f"geometry is {shape}; it must be a polygon or a multi-polygon")
        if geometry.is_empty:
            raise NearcastError(f"geometry is {shape}; it must not be empty")
        if not geometry.is_valid:
            raise NearcastError(f"geometry is {shape}; it is not a valid polygon: {shapely.is_valid_reason(geometry)}")
        _set(self, geometry=geometry)

    def __repr__(self) -> str:
        return f"Polygon({shapely.to_wkt(self.geometry)!r})"


def _read_geometry(value: object) -> BaseGeometry:
    if isinstance(value, BaseGeometry):
        return value
    if isinstance(value, Polygon):
        return value.geometry
    wanted = "it must be a polygon as WKT, WKB, GeoJSON or a shapely geometry"
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return shapely.from_wkb(bytes(value))
        if isinstance(value, Mapping):
            # A GeoJSON feature wraps the geometry.
            return shapely.from_geojson(json.dumps(value.get("geometry") or value))
        if isinstance(value, str) and value.lstrip().startswith("{"):
            return _read_geometry(json.loads(value))
        if isinstance(value, str):
            return shapely.from_wkt(value)
    except (ShapelyError, TypeError, ValueError, RecursionError) as error:
        raise NearcastError(f"geometry is {shortened(value)}; {wanted} ({error})") from None
    raise NearcastError(f"geometry is {shortened(value)}; {wanted}")


def shortened(value: object) -> str:
    """Return how a value is shown in an error: its repr, at most 80 characters."""
    try:
        shown = repr(value)
    except ValueError:  # Python does not convert integers of thousands of digits
        shown = "a number of very many digits"
    return shown if len(shown) <= 80 else shown[:77] + "..."


Region = Anywhere | Box | Circle | Polygon
# The region of a subscription that was given none.
UNGIVEN = Anywhere()


# --- messages and subscriptions


@dataclass(frozen=True, slots=True)
class Message:
    """An event at a point: `text` is a string, or a list of keywords that are not cut into words.

    `ts` is when it happened and `expires` when it ends: a datetime (naive means UTC) or seconds since 1970.
    """

    id: Id
    x: float
    y: float
    text: Words = ""
    ts: datetime | float | None = None
    expires: datetime | float | None = None

    def __post_init__(self) -> None:
        _set(
            self,
            id=checked_id(self.id),
            x=checked_number("x", self.x),
            y=checked_number("y", self.y),
            text=checked_words("text", self.text),
        )
        checked_time("ts", self.ts)
        checked_time("expires", self.expires)


@dataclass(frozen=True, slots=True)
class Boolean:
    """Deliver every message inside `within` whose words satisfy `expression`.

    `expression` uses AND, OR, NOT and parentheses; words side by side are joined by AND; quotes make one keyword
    of several words. A list of keywords means all of them. Without an expression it is a geofence: every message
    inside `within`, which must be given then.
    """

    kind: ClassVar[Kind] = "boolean"
    id: Id
    expression: Words | None = None
    within: Region = UNGIVEN

    def __post_init__(self) -> None:
        _set(self, id=checked_id(self.id))
        if not isinstance(self.within, (Anywhere, Box, Circle, Polygon)):
            raise NearcastError(f"within is {shortened(self.within)}; it must be Box, Circle, Polygon or Anywhere")
        if self.expression is not None:
            _set(self, expression=checked_words("expression", self.expression))
        elif self.within is UNGIVEN:
            raise NearcastError("expression is missing; a boolean subscription needs words or a region")


@dataclass(frozen=True, slots=True)
class Similar:
    """Deliver every message whose similarity reaches `threshold`.

    The similarity is `text_weight` times the similarity of the words plus `1 - text_weight` times that of the
    places.
    """

    kind: ClassVar[Kind] = "similar"
    id: Id
    text: Words
    _: KW_ONLY
    at: Point
    text_weight: float = 0.5
    threshold: float = 0.5
    similarity: Similarity = "weighted_overlap"

    def __post_init__(self) -> None:
        _set(
            self,
            id=checked_id(self.id),
            text=checked_words("text", self.text),
            at=checked_point("at", self.at),
            text_weight=checked_fraction("text_weight", self.text_weight),
            threshold=checked_fraction("threshold", self.threshold, is_zero_allowed=False),
        )
        checked_choice("similarity", self.similarity, SIMILARITIES)


@dataclass(frozen=True, slots=True)
class TopK:
    """Maintain the `k` best messages of the broker's window that share a word with `text`.

    The score is `spatial_weight` times the similarity of the places plus `1 - spatial_weight` times the cosine of
    the words.
    """

    kind: ClassVar[Kind] = "topk"
    id: Id
    text: Words
    _: KW_ONLY
    at: Point
    k: int = 10
    spatial_weight: float = 0.5

    def __post_init__(self) -> None:
        _set(
            self,
            id=checked_id(self.id),
            text=checked_words("text", self.text),
            at=checked_point("at", self.at),
            k=checked_count("k", self.k),
            spatial_weight=checked_fraction("spatial_weight", self.spatial_weight),
        )


@dataclass(frozen=True, slots=True)
class Nearest:
    """Maintain the `k` nearest messages that share a word with `text`, from registration on."""

    kind: ClassVar[Kind] = "nearest"
    id: Id
    text: Words
    _: KW_ONLY
    at: Point
    k: int = 10

    def __post_init__(self) -> None:
        _set(
            self,
            id=checked_id(self.id),
            text=checked_words("text", self.text),
            at=checked_point("at", self.at),
            k=checked_count("k", self.k),
        )


Subscription = Boolean | Similar | TopK | Nearest


def as_settings(part: Space | Window | Fence | None) -> dict[str, dict[str, float | None]] | None:
    """Return a space, window or fence as JSON values."""
    return None if part is None else {type(part).__name__: asdict(part)}


def of_settings(settings: Mapping[str, Mapping[str, Any]] | None) -> Any:  # Any: JSON; the caller knows the type
    """Return the space, window or fence that `as_settings` described."""
    kinds = {kind.__name__: kind for kind in (Planar, Geographic, CountWindow, TimeWindow, Fence)}
    return next((kinds[name](**values) for name, values in (settings or {}).items()), None)


class Delivery(NamedTuple):
    """A message reached a subscription (`change` +1), or left its results (-1).

    `score` is the similarity or the top-k score; `distance` is measured from the subscription's point, or from the
    centre of its circle; `rank` is the place in the results, from 1 on, of a message that left its last one. Each is
    None where it does not apply.
    """

    subscription: Id
    message: Id
    change: int = 1
    score: float | None = None
    distance: float | None = None
    rank: int | None = None

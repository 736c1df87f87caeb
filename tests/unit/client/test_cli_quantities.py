"""Places, durations, sizes and rates as people write them."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.cli.quantities import BadQuantity, Place, duration_ms, place, rate_per_s, size_bytes

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Place("earliest")),
        ("Beginning", Place("earliest")),
        ("latest", Place("latest")),
        ("end", Place("latest")),
        ("0", Place("offset", 0)),
        ("17", Place("offset", 17)),
        ("-5", Place("last", 5)),
        ("-10m", Place("time", NOW - 600_000)),
        ("-1h30m", Place("time", NOW - 5_400_000)),
        ("-99999w", Place("time", 0)),
        ("@1700000000", Place("time", 1_700_000_000_000)),
        ("@1700000000123", Place("time", 1_700_000_000_123)),
        ("2026-03-01T12:00:00Z", Place("time", 1_772_366_400_000)),
        ("2026-03-01T12:00:00+02:00", Place("time", 1_772_359_200_000)),
    ],
)
def test_a_place_is_read_as_it_is_meant(text: str, expected: Place) -> None:
    assert place(text, NOW) == expected


def test_a_time_without_a_zone_is_local() -> None:
    expected = datetime(2026, 3, 1, 12).astimezone().timestamp() * 1000
    assert place("2026-03-01 12:00", NOW) == Place("time", round(expected))


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "-", "-10x", "@", "@x", "--5", "10m", "9" * 25, "1_000", "٣"])
def test_what_is_no_place_says_what_would_be_one(text: str) -> None:
    with pytest.raises(BadQuantity, match="is none of: earliest, latest, an offset"):
        place(text, NOW)


def test_an_offset_may_be_too_large() -> None:
    with pytest.raises(BadQuantity, match="too large"):
        place("9999999999999999999", NOW)


@given(st.text())
def test_any_text_is_a_place_or_is_refused(text: str) -> None:
    try:
        found = place(text, NOW)
    except BadQuantity:
        return
    assert found.value >= 0


NINES = "9" * 400


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (duration_ms, f"{NINES}d", "too large"),
        (size_bytes, f"{NINES}GiB", "too large"),
        (lambda text: place(text, NOW), f"-{NINES}d", "too large"),
        (rate_per_s, NINES, "a rate must be from 0.001 to 1,000,000,000 a second"),
        (rate_per_s, "0.00000000000001", "a rate must be from"),
    ],
)
def test_what_is_out_of_bounds_is_refused(parse: Callable[[str], object], text: str, why: str) -> None:
    with pytest.raises(BadQuantity, match=why) as refused:
        parse(text)
    assert len(str(refused.value)) < 100


NUMBER = r"\d{1,4}(0{400})?(\.\d{1,4})?"


@settings(max_examples=25)
@given(
    st.from_regex(rf"({NUMBER}(ms|s|m|h|d|w)){{1,3}}", fullmatch=True, alphabet=st.characters(codec="ascii")),
    st.from_regex(rf"{NUMBER} ?[kKmMgGtT]?i?[bB]?", fullmatch=True, alphabet=st.characters(codec="ascii")),
    st.from_regex(rf"{NUMBER}(/s)?", fullmatch=True, alphabet=st.characters(codec="ascii")),
)
def test_quantities_of_any_size_are_numbers_or_refused(duration: str, size: str, rate: str) -> None:
    for parse, text in (
        (duration_ms, duration),
        (size_bytes, size),
        (rate_per_s, rate),
        (lambda text: place(text, NOW).value, f"-{duration}"),
    ):
        try:
            found = parse(text)
        except BadQuantity:
            continue
        assert 0 <= found < 1 << 63


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1)))  # noqa: DTZ001
def test_every_moment_comes_back(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    assert place(moment.isoformat(), NOW) == Place("time", round(moment.timestamp() * 1000))


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (duration_ms, "500ms", 500),
        (duration_ms, "10s", 10_000),
        (duration_ms, "1.5h", 5_400_000),
        (duration_ms, "1h30m", 5_400_000),
        (duration_ms, "7d", 604_800_000),
        (size_bytes, "1000", 1000),
        (size_bytes, "64KiB", 65_536),
        (size_bytes, "1.5GB", 1_500_000_000),
        (size_bytes, "10 MiB", 10_485_760),
        (size_bytes, "2 b", 2),
        (rate_per_s, "100", 100.0),
        (rate_per_s, "0.5/s", 0.5),
    ],
)
def test_durations_sizes_and_rates(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (duration_ms, "10"),
        (duration_ms, "d"),
        (size_bytes, "1iB"),
        (size_bytes, "-1"),
        (rate_per_s, "0"),
        (rate_per_s, "1/m"),
    ],
)
def test_what_is_none_says_how_to_write_it(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(BadQuantity, match="write it like"):
        parse(text)

"""The error table: stable codes, and the same class on both ends."""

from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import errors


def test_codes_belong_to_their_status() -> None:
    for code, cls in errors.BY_CODE.items():
        assert code // 100 == cls.http_status, cls


def test_every_class_but_the_base_has_a_code_of_its_own() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MyQueueError)]
    own = [cls.error_code for cls in classes if cls is not errors.MyQueueError]
    assert len(own) == len(set(own))


@given(st.sampled_from(sorted(errors.BY_CODE)), st.text(min_size=1), st.sampled_from([None, "not_written", "unknown"]))
def test_the_library_raises_what_the_server_meant(code: int, message: str, outcome: errors.Outcome | None) -> None:
    error = errors.BY_CODE[code](message, outcome=outcome)
    again = errors.from_body(error.to_body("id"), error.http_status)
    assert type(again) is type(error)
    assert (again.message, again.outcome, again.request_id) == (error.message, error.outcome, "id")


def test_answers_of_strangers_become_errors_too() -> None:
    assert isinstance(errors.from_body("<html>", 502), errors.UpstreamFailed)
    assert isinstance(errors.from_body(None, 504), errors.UpstreamTimeout)
    assert isinstance(errors.from_body([], 503), errors.Unavailable)
    assert errors.from_body({"error_code": 99999, "message": "new"}, 499).message == "new"

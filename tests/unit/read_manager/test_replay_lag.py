from db.servers import DatabaseServer
from db.timelines import CurrentTimeline
from read_manager.replay_lag import ReplayTimes, replay_lag_bytes, written_position


def server(current: CurrentTimeline, position: int, *, primary: bool = False, timeline: int = 1) -> DatabaseServer:
    made = DatabaseServer("localhost:1", 5, current)
    made.learn(primary, timeline, position, None if primary else timeline, 1 if primary else None)
    return made


def test_bytes_behind_the_primary() -> None:
    current = CurrentTimeline()
    primary, standby = server(current, 1000, primary=True), server(current, 400)
    written = written_position([standby, primary])
    assert written == 1000
    assert replay_lag_bytes(standby, written) == 600
    assert replay_lag_bytes(primary, written) is None
    assert replay_lag_bytes(server(current, 1200), written) == 0  # it was asked later
    standby.hung()
    assert replay_lag_bytes(standby, written) is None


def test_without_a_primary_nobody_knows() -> None:
    current = CurrentTimeline()
    replaced, standby = server(current, 1000, primary=True), server(current, 400, timeline=2)
    assert written_position([replaced, standby]) is None
    assert replay_lag_bytes(standby, None) is None


def test_seconds_behind_are_those_since_the_primary_wrote_more() -> None:
    times = ReplayTimes(60)
    assert times.lag_s(0, 10) is None
    times.add(0, 100)
    assert times.lag_s(0, 100) == 0
    assert times.lag_s(0, 50) is None  # since when is not known
    times.add(1, 200)
    times.add(2, 300)
    assert times.lag_s(2, 300) == 0
    assert times.lag_s(2, 200) == 0  # it wrote the rest this very moment
    assert times.lag_s(3, 100) == 2
    assert times.lag_s(3, 50) == 3  # at least


def test_another_primary_begins_anew() -> None:
    times = ReplayTimes(60)
    times.add(0, 500)
    times.add(1, None)
    times.add(2, 300)
    assert times.lag_s(2, 300) == 0
    assert times.lag_s(2, 200) is None


def test_what_was_written_long_ago_is_forgotten() -> None:
    times = ReplayTimes(60)
    for at_s in range(200):
        times.add(at_s, at_s * 10)
    assert times.lag_s(199, 0) == 60

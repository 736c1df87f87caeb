"""An address that creates topic after topic by registering producers is stopped; no other address is, nor one that
registers for topics that exist."""

import uuid

import pytest

from tests.calls import Calls
from tests.cluster import Cluster
from tests.from_address import session_from
from write_manager.config import WriteManagerSettings

BUSY, OTHER = "127.0.0.61", "127.0.0.62"
PER_MINUTE: int = WriteManagerSettings.model_fields["topic_creations_per_minute"].default


@pytest.mark.slow
def test_topics_that_one_address_creates_by_registering(stack: Cluster) -> None:
    prefix = f"flood-{uuid.uuid4().hex[:8]}"
    made: list[str] = []
    with session_from(BUSY) as busy_session, session_from(OTHER) as other_session:
        busy, other = Calls(stack.url, busy_session), Calls(stack.url, other_session)
        try:
            for number in range(3 * PER_MINUTE):
                topic, lie = f"{prefix}-{number}", {"X-Real-IP": f"10.0.0.{number}", "X-Forwarded-For": "10.0.1.1"}
                answer = (
                    busy.post("/producer/register", {"topic": topic}, lie)
                    if number % 2
                    else busy.post(f"/v1/topics/{topic}/producers", {"name": "p"}, lie)
                )
                if answer.status_code != 201:
                    break
                made.append(topic)
            answered = answer.json()
            assert (answer.status_code, answered["error_code"], answered["outcome"]) == (429, 42901, "not_written")
            assert "topics" in answered["message"]
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert len(made) >= PER_MINUTE
            assert topic not in busy.get("/topics").json()["topics"]
            for existing in made[:3]:
                busy.producer(existing)
            assert other.register_producer(topic).status_code == 201
            made.append(topic)
        finally:
            for topic in made:
                busy_session.delete(f"{stack.url}/v1/topics/{topic}", timeout=15)

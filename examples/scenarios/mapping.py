"""The mapping of a scenario: with `T1: P1 P2: C1 C2`, producers 1 and 2 send to T1, and consumers 1 and 2 read it."""

import re
from dataclasses import dataclass
from pathlib import Path

from examples.scenarios.log_file import Line, producer_file, read_log
from myqueue.protocol.limits import topic_name_problem

DATA = Path(__file__).resolve().parent
_NAME = re.compile(r"([PC])([0-9]{1,9})\Z", re.ASCII)

Topics = tuple[str, ...]


class BadScenario(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    folder: Path
    producers: dict[int, Topics]
    consumers: dict[int, Topics]

    @property
    def topics(self) -> Topics:
        every = (topic for topics in (*self.producers.values(), *self.consumers.values()) for topic in topics)
        return tuple(dict.fromkeys(every))

    def sent(self, folder: Path) -> dict[int, list[Line]]:
        """The lines that each producer sends: those of its topics in its log file."""
        logs = {number: read_log(producer_file(folder, number)) for number in self.producers}
        return {number: [line for line in logs[number] if line.topic in self.producers[number]] for number in logs}


def parse_mapping(text: str) -> tuple[dict[int, Topics], dict[int, Topics]]:
    """Topics of each producer and of each consumer. ValueError says what is wrong."""
    producers: dict[int, Topics] = {}
    consumers: dict[int, Topics] = {}
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.split() for part in line.split(":")]
        if len(parts) != 3 or len(parts[0]) != 1:
            raise ValueError(f"line {number}: not `topic: producers: consumers`, as in `T1: P1 P2: C1 C2`")
        (topic,), senders, readers = parts
        if (problem := topic_name_problem(topic)) is not None:
            raise ValueError(f"line {number}: {problem}")
        if topic in seen:
            raise ValueError(f"line {number}: topic {topic} is there twice")
        seen.add(topic)
        for letter, names, found in (("P", senders, producers), ("C", readers, consumers)):
            for name in names:
                match = _NAME.match(name)
                if match is None or match[1] != letter:
                    raise ValueError(f"line {number}: {name!r} must be {letter} and a number, as in {letter}1")
                topics = found.get(int(match[2]), ())
                if topic in topics:
                    raise ValueError(f"line {number}: {name} is there twice")
                found[int(match[2])] = (*topics, topic)
    if not producers or not consumers:
        raise ValueError("a scenario needs at least one producer and one consumer")
    return dict(sorted(producers.items())), dict(sorted(consumers.items()))


def load_scenario(name: str) -> Scenario:
    """A scenario of the examples, or a folder with a mapping.txt."""
    folder = DATA / name if (DATA / name / "mapping.txt").is_file() else Path(name)
    path = folder / "mapping.txt"
    try:
        producers, consumers = parse_mapping(path.read_text())
    except OSError as error:
        known = ", ".join(sorted(found.parent.name for found in DATA.glob("*/mapping.txt")))
        raise BadScenario(f"no scenario {name}: {path}: {error.strerror}; there are {known}") from None
    except ValueError as error:
        raise BadScenario(f"{path}: {error}") from None
    return Scenario(folder.resolve().name, folder.resolve(), producers, consumers)

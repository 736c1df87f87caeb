"""What ends a command, in words for the person who gave it."""

DONE = 0
FAILED = 1
WRONG_USAGE = 2
RUNS_ELSEWHERE = 4


class SparkFailure(Exception):
    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code

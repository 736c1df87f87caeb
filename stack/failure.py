"""The one exception that ends a stack command, with the exit code it stands for."""


class StackError(Exception):
    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code

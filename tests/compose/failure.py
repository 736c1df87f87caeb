"""Why the tests cannot go on; the message is for the person who started them."""


class CannotRun(Exception):
    """This machine lacks something; says what, and what would help. A skip, unless the tests are required."""


class StageFailed(Exception):
    """What was tested did not hold."""


class TookTooLong(StageFailed):
    """A command did not end in time and was ended."""
